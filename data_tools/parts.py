"""The tokens of one part of the input on disk, and pairs put together from parts.

A part is `NUMBER.bin` (its tokens), `NUMBER.lengths` (int32, one document each), `NUMBER.rejects.jsonl`, and last of
all `NUMBER.json`, which says that the part is whole and what it holds. All are written beside, flushed and renamed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from efficientbench.data_tools.documents import PartReader, Reject
from efficientbench.data_tools.engine import Engine
from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.files import write_file
from efficientbench.data_tools.inputs import Part

_FLUSH_TOKENS = 1 << 20


@dataclass(frozen=True)
class PartCounts:
    """What a finished part holds. `lines` counts what its piece of the file has, blank lines included."""

    documents: int
    tokens: int
    utf8_bytes: int
    lines: int
    rejected: dict[str, int]
    special_token_strings: dict[str, int]


@dataclass(frozen=True)
class InputState:
    """An input file as it is when a run begins."""

    path: Path
    size_bytes: int
    modified_ns: int

    @staticmethod
    def of(path: Path) -> InputState:
        """The file's state now."""
        stat = path.stat()
        return InputState(path, stat.st_size, stat.st_mtime_ns)

    def check_unchanged(self) -> None:
        """Raise DataError where the file is no longer what it was."""
        if InputState.of(self.path) != self:
            raise DataError(f"{self.path} changed while it was read: nothing of it was kept; begin again")


@dataclass(frozen=True)
class PartWork:
    """Makes parts in `folder`; an object of this class is what a worker process is given."""

    folder: Path
    engine: Engine
    eod_id: int
    dtype: np.dtype
    text_key: str

    def __call__(self, task: tuple[int, Part, InputState]) -> PartCounts:
        """Tokenize one part and write it. Its number decides its name."""
        number, part, state = task
        paths = [self.folder / f"{number:06}.{suffix}" for suffix in ("bin", "lengths", "rejects.jsonl")]
        # A name of its own, so that a process that outlives its parent for a moment spoils no other's file.
        partial = [path.with_name(f"{path.name}.{os.getpid()}.partial") for path in paths]
        try:
            with partial[0].open("wb") as tokens, partial[1].open("wb") as lengths, partial[2].open("wb") as rejects:
                counts = self._write(part, tokens, lengths, rejects)
                for stream in (tokens, lengths, rejects):
                    stream.flush()
                    os.fsync(stream.fileno())
            state.check_unchanged()
            for path, written in zip(paths, partial, strict=True):
                os.replace(written, path)
            write_file(self.folder / f"{number:06}.json", json.dumps(asdict(counts)).encode())
        finally:
            for path in partial:
                path.unlink(missing_ok=True)
        return counts

    def _write(self, part: Part, tokens: BinaryIO, lengths: BinaryIO, rejects: BinaryIO) -> PartCounts:
        reader = PartReader(part, self.text_key)
        rejected: Counter[str] = Counter()
        special: Counter[str] = Counter()
        documents = written_tokens = utf8_bytes = 0
        pending: list[np.ndarray] = []
        pending_tokens = 0
        end = np.array([self.eod_id], self.dtype)
        for document in reader:
            if isinstance(document, Reject):
                rejected[document.reason] += 1
                rejects.write(json.dumps(asdict(document)).encode() + b"\n")
                continue
            ids = self.engine.encode(document)
            special += self.engine.count_special(document)
            utf8_bytes += len(document) if document.isascii() else len(document.encode())
            documents += 1
            pending += [ids.astype(self.dtype), end]
            lengths.write((len(ids) + 1).to_bytes(4, "little"))
            pending_tokens += len(ids) + 1
            if pending_tokens >= _FLUSH_TOKENS:
                tokens.write(np.concatenate(pending).data)
                written_tokens += pending_tokens
                pending, pending_tokens = [], 0
        for array in pending:
            tokens.write(array.data)
        return PartCounts(
            documents, written_tokens + pending_tokens, utf8_bytes, reader.lines, dict(rejected), dict(special)
        )


def finished_part(folder: Path, number: int, dtype: np.dtype) -> PartCounts | None:
    """What the part of this number holds; None where it is not whole, and has to be made."""
    try:
        counts = PartCounts(**json.loads((folder / f"{number:06}.json").read_bytes()))
        sizes = [(folder / f"{number:06}.{suffix}").stat().st_size for suffix in ("bin", "lengths")]
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return counts if sizes == [counts.tokens * dtype.itemsize, counts.documents * 4] else None


def part_lengths(folder: Path, number: int) -> np.ndarray:
    """The documents' lengths in tokens, int32 [documents]."""
    return np.fromfile(folder / f"{number:06}.lengths", np.int32)


def part_rejects(folder: Path, number: int) -> Iterator[Reject]:
    """What the part could not use."""
    with (folder / f"{number:06}.rejects.jsonl").open("rb") as stream:
        for line in stream:
            yield Reject(**json.loads(line))
