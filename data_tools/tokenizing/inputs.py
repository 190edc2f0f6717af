"""Finds input files in folders and by globs, and cuts them into parts that can be read independently.

The cuts depend on the file alone, not on the number of processes that read it.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.rows import JSONL_SUFFIXES, PARQUET_SUFFIXES, open_parquet

TEXT_SUFFIXES = (".txt", ".text")
COMPRESSED_SUFFIXES = (".gz", ".zst")
KNOWN_SUFFIXES = (
    f"JSONL ({', '.join(JSONL_SUFFIXES)}), text ({', '.join(TEXT_SUFFIXES)}), each also with "
    f"{' or '.join(COMPRESSED_SUFFIXES)}, and {PARQUET_SUFFIXES[0]}"
)

PART_BYTES = 8 << 20
"""Bytes of a part: about a second of work, so that processes share it evenly, and a kill costs little."""


@dataclass(frozen=True)
class InputState:
    """The size and modification time of an input file when a run begins."""

    path: Path
    size_bytes: int
    modified_ns: int

    @staticmethod
    def of(path: Path) -> InputState:
        """Return the file's current state."""
        stat = path.stat()
        return InputState(path, stat.st_size, stat.st_mtime_ns)

    def check_unchanged(self) -> None:
        """Raise a DataError if the file's size or modification time changed."""
        if InputState.of(self.path) != self:
            raise DataError(f"{self.path} changed while it was read: nothing of it was kept; begin again")


@dataclass(frozen=True)
class Part:
    """A piece of one file: its lines that begin in bytes [begin, end), or its parquet row groups [begin, end).

    A compressed file is one part, since it can be read only from its start; its `end` is None.
    """

    path: Path
    kind: str
    """The kind of the file: `jsonl`, `text` or `parquet`."""
    compression: str | None
    """`gz` or `zst`; None for an uncompressed file."""
    begin: int
    end: int | None


def is_text_file(path: Path) -> bool:
    """Return whether a file can be tokenized, by its suffix."""
    return _kind(path) is not None


def is_plain_text(path: Path) -> bool:
    """Return whether a file is text or JSONL without compression, whose size bounds that of its text."""
    kind = _kind(path)
    return kind is not None and kind[0] != "parquet" and kind[1] is None


def find_inputs(
    inputs: Iterable[str | Path], is_known: Callable[[Path], bool] = is_text_file, known: str = KNOWN_SUFFIXES
) -> list[Path]:
    """Return the files that paths, folders (recursively) and globs name, without duplicates, in a fixed order.

    Args:
        inputs: Paths of files and folders, and globs.
        is_known: Returns whether a file's kind is known, by its name.
        known: The known kinds, for error messages.

    Raises:
        DataError: an input names no file, a file of an unknown kind, or a file whose name is not UTF-8.
    """
    found: dict[str, Path] = {}
    for given in inputs:
        for path in _find(Path(os.path.expanduser(given)), is_known, known):
            _check_name(path)
            found.setdefault(os.path.realpath(path), path)
    if not found:
        raise DataError("no input was given")
    return list(found.values())


def _find(given: Path, is_known: Callable[[Path], bool], known: str) -> list[Path]:
    if given.is_dir():
        below = (path for path in given.rglob("*") if is_known(path) and path.is_file())
        paths = sorted(path for path in below if not _is_output(path.relative_to(given)))
        if not paths:
            raise DataError(f"{given} holds no file of a known kind: {known}")
        return paths
    if not given.exists() and glob.has_magic(str(given)):
        paths = [path for path in map(Path, sorted(glob.glob(str(given), recursive=True))) if path.is_file()]
        if not paths:
            raise DataError(f"{given}: no file matches")
    else:
        paths = [given]
    for path in paths:
        _check_file(path, is_known, known)
    return paths


def _check_name(path: Path) -> None:
    """Refuse a file name that is not UTF-8: the JSON of plans and records cannot hold it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{path.parent} holds a file whose name is not UTF-8, {os.fsencode(path.name)!r}: rename it, as "
            "convmv -f gbk -t utf-8 --notest NAME does"
        ) from None


def _is_output(path: Path) -> bool:
    """Return whether tokenizing wrote the file, beside a pair or among its parts."""
    if path.name.endswith((".rejects.jsonl", ".manifest.json")):
        return True
    return any(folder.name.endswith((".parts", ".tokenizer")) for folder in path.parents)


def _check_file(path: Path, is_known: Callable[[Path], bool], known: str) -> None:
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not path.is_file():
        raise DataError(f"{path} is no regular file, and is read twice: write a pipe's content into a file first")
    if not is_known(path):
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; known: {known}")


def _kind(path: Path) -> tuple[str, str | None] | None:
    """Return the kind and the compression, ("jsonl", "gz") for `a.jsonl.gz`; None for unknown kinds."""
    name = path.name.lower()
    compression = next((suffix for suffix in COMPRESSED_SUFFIXES if name.endswith(suffix)), None)
    suffix = Path(name.removesuffix(compression or "")).suffix
    if suffix in PARQUET_SUFFIXES and compression is None:
        return "parquet", None
    for kind, suffixes in (("jsonl", JSONL_SUFFIXES), ("text", TEXT_SUFFIXES)):
        if suffix in suffixes:
            return kind, compression and compression[1:]
    return None


def cut_into_parts(paths: Sequence[Path], text_key: str) -> list[Part]:
    """Cut the files into parts, in the order of the files.

    Raises:
        DataError: a parquet file cannot be read, or has no column `text_key` of strings.
        OSError: a file cannot be read.
    """
    parts = []
    for path in paths:
        kind, compression = _kind(path) or ("", None)
        if compression is not None:
            parts.append(Part(path, kind, compression, 0, None))
        elif kind == "parquet":
            parts += [Part(path, kind, None, *groups) for groups in _row_groups(path, text_key)]
        else:
            size = path.stat().st_size
            cuts = [*range(0, size, PART_BYTES), size]
            # A short remainder joins the part before it.
            if len(cuts) > 2 and cuts[-1] - cuts[-2] < PART_BYTES // 2:
                del cuts[-2]
            parts += [Part(path, kind, None, *cut) for cut in zip(cuts, cuts[1:], strict=False)]
    return parts


def _row_groups(path: Path, text_key: str) -> list[tuple[int, int]]:
    """Return ranges [begin, end) of row groups whose text takes about `PART_BYTES`."""
    with open_parquet(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
    import pyarrow as pa

    if text_key not in schema.names:
        raise DataError(f"{path}: no column {text_key!r}; columns there: {', '.join(map(repr, schema.names))}")
    if schema.names.count(text_key) > 1:
        raise DataError(f"{path}: {schema.names.count(text_key)} columns are called {text_key!r}: rename all but one")
    kind = schema.field(text_key).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if kind not in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()):
        raise DataError(f"{path}: the column {text_key!r} must hold strings, it holds: {kind}")
    column = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == text_key)
    runs = []
    first = size = 0
    for group in range(metadata.num_row_groups):
        size += metadata.row_group(group).column(column).total_uncompressed_size
        if size >= PART_BYTES or group == metadata.num_row_groups - 1:
            runs.append((first, group + 1))
            first, size = group + 1, 0
    return runs
