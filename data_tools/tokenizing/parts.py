"""Tokenizes the documents of one part to disk, and merges all parts into the pair.

A part is several files `NUMBER.KIND`: `bin` (its tokens), `mask` (of conversations: 1 where the token is supervised),
`lengths` (int32, tokens of each document), `hashes` (`document_hash` of each), `rejects.jsonl`, and `json`: a line with
its `PartCounts`, then the CRC-32 of that line. `NUMBER.json` is written last: a part that has one is complete.
"""

from __future__ import annotations

import json
import os
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from efficientbench.basics.files import beside, complete_file, file_blocks, write_file
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.data_tools.tokenizer.engine import Engine
from efficientbench.data_tools.tokenizing.documents import Reject
from efficientbench.data_tools.tokens.indexed import (
    MASK_DTYPE,
    bin_path,
    document_hash,
    hashes_path,
    idx_path,
    index_blocks,
    mask_prefix,
)

_KINDS = ("bin", "mask", "lengths", "hashes", "rejects.jsonl")
"""The kinds of a part's files, except `json`, the last one."""


@dataclass
class PartCounts:
    """The counts of a part."""

    documents: int = 0
    tokens: int = 0
    """Tokens of all documents, those that end documents included."""
    supervised_tokens: int = 0
    utf8_bytes: int = 0
    lines: int = 0
    """Lines of the input in this part, blank ones included; 0 for conversations."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Number of unusable documents by reason."""
    special_token_strings: dict[str, int] = field(default_factory=dict)
    """How often the names of special tokens occur in the text."""
    crc32: dict[str, int] = field(default_factory=dict)
    """CRC-32 of the part's files, by their kinds."""


@dataclass(frozen=True)
class Document:
    """A tokenized document."""

    ids: np.ndarray
    """The ids, [tokens], with the token that ends the document."""
    texts: Sequence[str]
    """The text, in pieces."""
    mask: np.ndarray | None = None
    """The mask of a conversation, uint8 [tokens]: 1 where the token is supervised."""


@dataclass(frozen=True)
class PartMaker(ABC):
    """Makes parts in `folder`; worker processes unpickle it."""

    folder: Path
    engine: Engine
    dtype: np.dtype

    @abstractmethod
    def documents(self, task: Any, counts: PartCounts) -> Iterator[Document | Reject]:
        """Yield the documents of a part, whose input is `task`; then check that the files read are unchanged.

        Set `counts.lines` if the input has lines.
        """

    def __call__(self, numbered: tuple[int, Any]) -> PartCounts:
        """Make one part, `(number, task)`: write its files under its number."""
        number, task = numbered
        counts = PartCounts()
        # With the process id, since a worker may outlive its parent for a moment, beside the next run's workers.
        suffix = f"{os.getpid()}.partial"
        paths = {kind: part_file(self.folder, number, kind) for kind in _KINDS}
        with ExitStack() as stack:
            opened = {kind: complete_file(path, beside(path, suffix)) for kind, path in paths.items()}
            files = {kind: stack.enter_context(file) for kind, file in opened.items()}
            self._write(self.documents(task, counts), counts, files)
        counts.crc32 = {kind: _crc32(path) for kind, path in paths.items()}
        line = json.dumps(asdict(counts)).encode()
        write_file(part_file(self.folder, number, "json"), b"%b\n%08x\n" % (line, zlib.crc32(line)))
        return counts

    def _write(
        self, documents: Iterator[Document | Reject], counts: PartCounts, files: Mapping[str, IO[bytes]]
    ) -> None:
        rejected, special = Counter[str](), Counter[str]()
        for document in documents:
            if isinstance(document, Reject):
                rejected[document.reason] += 1
                files["rejects.jsonl"].write(json.dumps(asdict(document)).encode() + b"\n")
                continue
            content = document.ids.astype(self.dtype).tobytes()
            files["bin"].write(content)
            files["lengths"].write(len(document.ids).to_bytes(4, "little"))
            files["hashes"].write(document_hash(content))
            if document.mask is not None:
                files["mask"].write(document.mask.tobytes())
                counts.supervised_tokens += int(document.mask.sum())
            counts.documents += 1
            counts.tokens += len(document.ids)
            for text in document.texts:
                special += self.engine.count_special(text)
                counts.utf8_bytes += len(text) if text.isascii() else len(text.encode())
        counts.rejected, counts.special_token_strings = dict(rejected), dict(special)


def finished_part(folder: Path, number: int) -> PartCounts | None:
    """Return the counts of a part; None if the part is missing, incomplete or damaged, and has to be made."""
    try:
        line, crc32 = read_whole(part_file(folder, number, "json")).splitlines()
        if zlib.crc32(line) != int(crc32, 16):
            return None
        counts = PartCounts(**parse_json(line))
        found = {kind: _crc32(part_file(folder, number, kind)) for kind in counts.crc32}
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return counts if found == counts.crc32 else None


def part_file(folder: Path, number: int, kind: str) -> Path:
    """Return the path of one of a part's files."""
    return folder / f"{number:06}.{kind}"


def _crc32(path: Path) -> int:
    crc32 = 0
    for block in file_blocks(path):
        crc32 = zlib.crc32(block, crc32)
    return crc32


def total(counts: Iterable[PartCounts]) -> PartCounts:
    """Return the sums of the counts of several parts."""
    sums, rejected, special = PartCounts(), Counter[str](), Counter[str]()
    for each in counts:
        sums.documents += each.documents
        sums.tokens += each.tokens
        sums.supervised_tokens += each.supervised_tokens
        sums.utf8_bytes += each.utf8_bytes
        rejected.update(each.rejected)
        special.update(each.special_token_strings)
    sums.rejected, sums.special_token_strings = dict(rejected), dict(special)
    return sums


def merge_parts(
    folder: Path, counts: Sequence[PartCounts], prefix: Path, dtype: np.dtype, order: np.ndarray | None = None
) -> None:
    """Merge the parts into the pair, and write the documents' hashes.

    Args:
        folder: The folder of the parts.
        counts: The counts of each part.
        prefix: The pair's path without suffix.
        dtype: The dtype of an id.
        order: The conversations' indices in the concatenated parts, int64; their mask is merged too. None: text.
    """
    numbers = range(len(counts))

    def blocks(kind: str) -> Iterator[bytes]:
        return (block for number in numbers for block in file_blocks(part_file(folder, number, kind)))

    def lengths() -> Iterable[np.ndarray]:
        found = (np.fromfile(part_file(folder, number, "lengths"), np.int32) for number in numbers)
        return found if order is None else [np.concatenate([*found])[order]]

    hashes, contents = blocks("hashes"), [(prefix, blocks("bin"), dtype)]
    if order is not None:
        hashes = iter([np.frombuffer(b"".join(hashes), np.uint64)[order].tobytes()])
        ends = np.cumsum(np.frombuffer(b"".join(blocks("lengths")), np.int32), dtype=np.int64)
        contents = [
            (path, _ordered(folder / f"all.{kind}", blocks(kind), order, ends, entry), entry)
            for path, kind, entry in ((prefix, "bin", dtype), (mask_prefix(prefix), "mask", MASK_DTYPE))
        ]
    documents = sum(count.documents for count in counts) if order is None else len(order)
    # All files are written before one of them gets its name.
    with ExitStack() as stack:
        for path, content, entry in contents:
            stack.enter_context(complete_file(bin_path(path))).writelines(content)
            stack.enter_context(complete_file(idx_path(path))).writelines(index_blocks(lengths, documents, entry))
        stack.enter_context(complete_file(hashes_path(prefix))).writelines(hashes)


def _ordered(
    path: Path, blocks: Iterable[bytes], order: np.ndarray, ends: np.ndarray, dtype: np.dtype
) -> Iterator[bytes]:
    """Write all parts to one file, since so many files could not be open at once; yield its documents in order."""
    with complete_file(path) as stream:
        stream.writelines(blocks)
    array = np.memmap(path, dtype, mode="r")
    for number in order.tolist():
        yield array[ends[number - 1] if number else 0 : ends[number]].tobytes()
