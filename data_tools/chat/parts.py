"""Renders the conversations of one part to disk, and merges all parts into the pairs of ids and mask.

A part is `NUMBER.bin` (its ids), `NUMBER.mask` (uint8), `NUMBER.lengths` (int32, tokens of each conversation), and
`NUMBER.json` with its `ConversationCounts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efficientbench.basics.files import complete_file, file_blocks
from efficientbench.data_tools.chat.examples import Examples
from efficientbench.data_tools.chat.record import MASK_DTYPE, mask_prefix
from efficientbench.data_tools.chat.render import Renderer
from efficientbench.data_tools.tokenizer.engine import Engine
from efficientbench.data_tools.tokenizing.building import CountedFile, finish_part, part_file, part_files
from efficientbench.data_tools.tokenizing.inputs import InputState
from efficientbench.data_tools.tokens.indexed import bin_path, document_hash, hashes_path, idx_path, index_blocks

PART_ROWS = 2_000
"""The most conversations of a part: some seconds of work."""

_KINDS = ("bin", "mask", "lengths")


@dataclass(frozen=True)
class Rows:
    """The rows of one source that make up a part."""

    source: int
    """The source's index in the mixture."""
    numbers: np.ndarray
    """The rows' numbers, ascending, int64."""


@dataclass(frozen=True)
class ConversationCounts:
    """The counts of a finished part."""

    conversations: int
    tokens: int
    supervised_tokens: int
    utf8_bytes: int
    """UTF-8 length of the messages' text."""
    special_token_strings: dict[str, int]
    """How often the names of special tokens occur in the text."""
    crc32: dict[str, int]
    """CRC-32 of the part's files, by the kinds in their names."""


@dataclass(frozen=True)
class PartRenderer:
    """Renders parts into `folder`; worker processes unpickle it."""

    folder: Path
    examples: tuple[Examples, ...]
    """The examples of each source."""
    states: tuple[InputState, ...]
    """The states of all input files."""
    engine: Engine
    renderer: Renderer
    dtype: np.dtype

    def __call__(self, numbered: tuple[int, Rows]) -> ConversationCounts:
        """Render one part, `(number, rows)`, and write its files under its number."""
        number, rows = numbered
        with part_files(self.folder, number, _KINDS) as files:
            counts = self._write(rows, *files)
            for state in self.states:
                state.check_unchanged()
        finish_part(self.folder, number, counts)
        return counts

    def _write(self, rows: Rows, ids: CountedFile, mask: CountedFile, lengths: CountedFile) -> ConversationCounts:
        special: Counter[str] = Counter()
        tokens = supervised = utf8_bytes = 0
        for example in self.examples[rows.source].read(rows.numbers):
            rendered = self.renderer.conversation(example.messages)
            ids.write(rendered.ids.astype(self.dtype).tobytes())
            mask.write(rendered.mask.tobytes())
            lengths.write(len(rendered.ids).to_bytes(4, "little"))
            tokens += len(rendered.ids)
            supervised += int(rendered.mask.sum())
            for part in (part for message in example.messages for part in message.parts):
                special += self.engine.count_special(part.text)
                utf8_bytes += len(part.text.encode())
        crc32 = dict(zip(_KINDS, (each.crc32 for each in (ids, mask, lengths)), strict=True))
        return ConversationCounts(len(rows.numbers), tokens, supervised, utf8_bytes, dict(special), crc32)


@dataclass(frozen=True)
class Merged:
    """The counts of the merged pairs, epochs included."""

    lengths: np.ndarray
    """Tokens of each conversation, int32."""
    supervised_tokens: int


def merge_parts(folder: Path, parts: int, order: np.ndarray, prefix: Path, dtype: np.dtype) -> Merged:
    """Merge the parts into the pairs of ids and mask, in an order, and write the conversations' hashes.

    Args:
        folder: The folder of the parts.
        parts: The number of parts.
        order: Indices of conversations in the concatenated parts, int64.
        prefix: The path of the pair of ids without suffix.
        dtype: The dtype of an id.
    """
    for kind in ("bin", "mask"):
        # All parts in one file of each kind, since so many files could not be open at once.
        with complete_file(folder / f"all.{kind}") as stream:
            stream.writelines(
                block for number in range(parts) for block in file_blocks(part_file(folder, number, kind))
            )
    lengths = np.concatenate([np.fromfile(part_file(folder, number, "lengths"), np.int32) for number in range(parts)])
    ends = np.cumsum(lengths, dtype=np.int64)
    ids = np.memmap(folder / "all.bin", dtype, mode="r")
    mask = np.memmap(folder / "all.mask", MASK_DTYPE, mode="r")

    def pieces(array: np.ndarray) -> Iterator[bytes]:
        for number in order.tolist():
            yield array[ends[number] - lengths[number] : ends[number]].tobytes()

    ordered = lengths[order]
    for each, array in ((prefix, ids), (mask_prefix(prefix), mask)):
        with complete_file(bin_path(each)) as content, complete_file(idx_path(each)) as index:
            content.writelines(pieces(array))
            index.writelines(index_blocks(lambda: [ordered], len(ordered), array.dtype))
    with complete_file(hashes_path(prefix)) as hashes:
        hashes.writelines(document_hash(piece) for piece in pieces(ids))
    return Merged(ordered, sum(int(mask[ends[n] - lengths[n] : ends[n]].sum(dtype=np.int64)) for n in order.tolist()))


def cut_into_parts(sources: Sequence[np.ndarray]) -> list[Rows]:
    """Cut the sources, each an array of row numbers, into parts, in order."""
    return [
        Rows(place, numbers[first : first + PART_ROWS])
        for place, numbers in enumerate(sources)
        for first in range(0, len(numbers), PART_ROWS)
    ]
