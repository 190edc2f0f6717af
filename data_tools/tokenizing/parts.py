"""Tokenizes one part of the input to disk, and merges all parts into the pair.

A part is `NUMBER.bin` (its tokens), `NUMBER.lengths` (int32, tokens of each document), `NUMBER.hashes`
(`document_hash` of each), `NUMBER.rejects.jsonl`, and `NUMBER.json` with its `PartCounts`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from efficientbench.basics.files import complete_file, file_blocks
from efficientbench.data_tools.tokenizer.engine import Engine
from efficientbench.data_tools.tokenizing.building import CountedFile, finish_part, part_file, part_files
from efficientbench.data_tools.tokenizing.documents import PartReader, Reject
from efficientbench.data_tools.tokenizing.inputs import InputState, Part
from efficientbench.data_tools.tokens.indexed import bin_path, document_hash, hashes_path, idx_path, index_blocks

_KINDS = ("bin", "lengths", "hashes", "rejects.jsonl")
"""The suffixes of a part's files, except `json`, the last one."""


@dataclass(frozen=True)
class PartCounts:
    """The counts of a finished part."""

    documents: int
    tokens: int
    """Tokens of all documents, end-of-document tokens included."""
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
class PartTokenizer:
    """Tokenizes parts into `folder`; worker processes unpickle it."""

    folder: Path
    engine: Engine
    eod_id: int
    dtype: np.dtype
    text_key: str
    max_document_mb: int

    def __call__(self, numbered: tuple[int, tuple[Part, InputState]]) -> PartCounts:
        """Tokenize one part, `(number, (part, state))`, and write its files under its number."""
        number, (part, state) = numbered
        with part_files(self.folder, number, _KINDS) as files:
            counts = self._write(part, *files)
            state.check_unchanged()
        finish_part(self.folder, number, counts)
        return counts

    def _write(
        self, part: Part, tokens: CountedFile, lengths: CountedFile, hashes: CountedFile, rejects: CountedFile
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


def merge_pair(folder: Path, counts: Sequence[PartCounts], prefix: Path, dtype: np.dtype) -> None:
    """Merge the parts into the pair, and write the documents' hashes."""
    numbers = range(len(counts))

    def lengths() -> Iterator[np.ndarray]:
        return (np.fromfile(part_file(folder, number, "lengths"), np.int32) for number in numbers)

    def blocks(kind: str) -> Iterator[bytes]:
        return (block for number in numbers for block in file_blocks(part_file(folder, number, kind)))

    documents = sum(count.documents for count in counts)
    # All files are written before one of them gets its name.
    with (
        complete_file(bin_path(prefix)) as tokens,
        complete_file(idx_path(prefix)) as index,
        complete_file(hashes_path(prefix)) as hashes,
    ):
        tokens.writelines(blocks("bin"))
        hashes.writelines(blocks("hashes"))
        index.writelines(index_blocks(lengths, documents, dtype))


def merge_rejects(folder: Path, parts: Sequence[Part], counts: Sequence[PartCounts], path: Path) -> str | None:
    """Write the list of unusable documents, with lines counted from each file's start; describe the first of them."""
    first = None
    lines: Counter[Path] = Counter()  # lines of each file in the parts before
    with complete_file(path) as stream:
        for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
            with part_file(folder, number, "rejects.jsonl").open("rb") as rejects:
                for reject in (Reject(**json.loads(row)) for row in rejects):
                    line = lines[part.path] + reject.line
                    first = first or f"{part.path}:{line}: {reject.detail}"
                    row = {"file": str(part.path.absolute()), "line": line, "reason": reject.reason}
                    stream.write(json.dumps({**row, "detail": reject.detail}).encode() + b"\n")
            lines[part.path] += count.lines
    return first
