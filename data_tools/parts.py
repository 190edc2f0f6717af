"""The tokens of one part of the input on disk, and the pair that is put together from all parts.

A part is `NUMBER.bin` (its tokens), `NUMBER.lengths` (int32, tokens of each document), `NUMBER.hashes`
(`document_hash` of each), `NUMBER.rejects.jsonl`, and `NUMBER.json` with its `PartCounts`, followed by the CRC-32 of
that line. The last is written last: a part that has one is complete.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from efficientbench.data_tools.documents import PartReader, Reject
from efficientbench.data_tools.engine import Engine
from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.files import complete_file, file_blocks, write_file
from efficientbench.data_tools.indexed import bin_path, document_hash, hashes_path, idx_path, index_blocks
from efficientbench.data_tools.inputs import Part

_KINDS = ("bin", "lengths", "hashes", "rejects.jsonl")
"""What a part's files are named after their number, except the last one."""


@dataclass(frozen=True)
class PartCounts:
    """What a finished part holds."""

    documents: int
    tokens: int
    """End-of-document tokens included."""
    utf8_bytes: int
    lines: int
    """Lines of the input in this part, blank ones included."""
    rejected: dict[str, int]
    """Number of unusable documents by reason."""
    special_token_strings: dict[str, int]
    """How often the names of special tokens occur in the text."""
    crc32: dict[str, int]
    """CRC-32 of the part's files, by the kinds in their names."""


@dataclass(frozen=True)
class InputState:
    """An input file as it is when a run begins."""

    path: Path
    size_bytes: int
    modified_ns: int

    @staticmethod
    def of(path: Path) -> InputState:
        """Return the file's state now."""
        stat = path.stat()
        return InputState(path, stat.st_size, stat.st_mtime_ns)

    def check_unchanged(self) -> None:
        """Raise a DataError if the file has another size or time now."""
        if InputState.of(self.path) != self:
            raise DataError(f"{self.path} changed while it was read: nothing of it was kept; begin again")


@dataclass(frozen=True)
class PartTokenizer:
    """Tokenizes parts into `folder`; worker processes unpickle it."""

    folder: Path
    engine: Engine
    eod_id: int
    dtype: np.dtype
    text_key: str
    max_document_mb: int

    def __call__(self, task: tuple[int, Part, InputState]) -> PartCounts:
        """Tokenize one part, and write its files, which its number names."""
        number, part, state = task
        # The process id, since a worker may outlive its parent for a moment, beside the next run's workers.
        suffix = f"{os.getpid()}.partial"
        with ExitStack() as stack:
            paths = (_part_file(self.folder, number, kind) for kind in _KINDS)
            files = [_Counted(stack.enter_context(complete_file(path, suffix))) for path in paths]
            counts = self._write(part, *files)
            state.check_unchanged()
        line = json.dumps(asdict(counts)).encode()
        write_file(_part_file(self.folder, number, "json"), b"%b\n%08x\n" % (line, zlib.crc32(line)))
        return counts

    def _write(
        self, part: Part, tokens: _Counted, lengths: _Counted, hashes: _Counted, rejects: _Counted
    ) -> PartCounts:
        reader = PartReader(part, self.text_key, self.max_document_mb)
        rejected: Counter[str] = Counter()
        special: Counter[str] = Counter()
        documents = written_tokens = utf8_bytes = 0
        end = np.array([self.eod_id], self.dtype).tobytes()
        for document in reader:
            if isinstance(document, Reject):
                rejected[document.reason] += 1
                rejects.write(json.dumps(asdict(document)).encode() + b"\n")
                continue
            ids = self.engine.encode(document)
            special += self.engine.count_special(document)
            utf8_bytes += len(document) if document.isascii() else len(document.encode())
            documents += 1
            written_tokens += len(ids) + 1
            content = ids.astype(self.dtype).tobytes() + end
            tokens.write(content)
            lengths.write((len(ids) + 1).to_bytes(4, "little"))
            hashes.write(document_hash(content))
        crc32 = dict(zip(_KINDS, (each.crc32 for each in (tokens, lengths, hashes, rejects)), strict=True))
        return PartCounts(documents, written_tokens, utf8_bytes, reader.lines, dict(rejected), dict(special), crc32)


class _Counted:
    """Writes a file, and keeps the CRC-32 of what it was given to write."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.crc32 = stream, 0

    def write(self, content: bytes) -> None:
        self.crc32 = zlib.crc32(content, self.crc32)
        self._stream.write(content)


def finished_part(folder: Path, number: int) -> PartCounts | None:
    """Return what the part of this number holds; None if it is not complete or damaged, and has to be made."""
    try:
        line, crc32 = _part_file(folder, number, "json").read_bytes().splitlines()
        if zlib.crc32(line) != int(crc32, 16):
            return None
        counts = PartCounts(**json.loads(line))
        found = {kind: _crc32(_part_file(folder, number, kind)) for kind in _KINDS}
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None
    return counts if found == counts.crc32 else None


def _crc32(path: Path) -> int:
    crc32 = 0
    for block in file_blocks(path):
        crc32 = zlib.crc32(block, crc32)
    return crc32


def merge_pair(folder: Path, counts: Sequence[PartCounts], prefix: Path, dtype: np.dtype) -> None:
    """Write the pair and the documents' hashes from its parts."""
    numbers = range(len(counts))

    def lengths() -> Iterator[np.ndarray]:
        return (np.fromfile(_part_file(folder, number, "lengths"), np.int32) for number in numbers)

    def blocks(kind: str) -> Iterator[bytes]:
        return (block for number in numbers for block in file_blocks(_part_file(folder, number, kind)))

    documents = sum(count.documents for count in counts)
    # All files are on the disk before one of them gets its name.
    with (
        complete_file(bin_path(prefix)) as tokens,
        complete_file(idx_path(prefix)) as index,
        complete_file(hashes_path(prefix)) as hashes,
    ):
        tokens.writelines(blocks("bin"))
        hashes.writelines(blocks("hashes"))
        index.writelines(index_blocks(lengths, documents, dtype))


def merge_rejects(folder: Path, parts: Sequence[Part], counts: Sequence[PartCounts], path: Path) -> str | None:
    """Write the list of unusable documents, with lines counted in the whole files; return the first of them."""
    first = None
    lines: Counter[Path] = Counter()  # of each file, in the parts before
    with complete_file(path) as stream:
        for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
            with _part_file(folder, number, "rejects.jsonl").open("rb") as rejects:
                for reject in (Reject(**json.loads(row)) for row in rejects):
                    line = lines[part.path] + reject.line
                    first = first or f"{part.path}:{line}: {reject.detail}"
                    row = {"file": str(part.path.absolute()), "line": line, "reason": reject.reason}
                    stream.write(json.dumps({**row, "detail": reject.detail}).encode() + b"\n")
            lines[part.path] += count.lines
    return first


def _part_file(folder: Path, number: int, kind: str) -> Path:
    return folder / f"{number:06}.{kind}"
