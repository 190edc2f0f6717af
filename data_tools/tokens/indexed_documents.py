"""The documents of a `.bin/.idx` pair, one at a time, and counts of its tokens: of all, or of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokens.indexed import bin_path, check_indexed, idx_path, map_index
from efficientbench.data_tools.tokens.intact import BlockReader

_CHUNK = 1 << 24
"""Tokens that are counted at once."""

_LARGEST_VOCABULARY = 1 << 24
"""A token id from here on is damage, whatever the tokenizer."""

_BLOCK = 1 << 16
"""Adjacent tokens of a sample that are read at once."""
_BLOCKS = 256
"""Blocks of a sample, evenly spaced over the corpus: 17 million tokens."""


class IndexedDocuments:
    """A pair's documents by number: `IndexedDocuments(prefix)[5]` is an array of tokens, [length].

    Both files are memory-mapped: opening them reads one header, and a document reads its own pages alone, however
    large the pair is. If the pair may be damaged, `check_indexed` must check it first.

    Raises:
        DataError: a file is missing, or its header is not that of a pair.
    """

    def __init__(self, prefix: Path, blocks: BlockReader | None = None) -> None:
        """Map the pair; `blocks` verifies each block of the `.bin` as it is read, None if that was done before."""
        if not bin_path(prefix).is_file() or not idx_path(prefix).is_file():
            raise DataError(f"{prefix}: a tokenized corpus is two files, {prefix.name}.bin and {prefix.name}.idx")
        self.prefix, self._blocks = prefix, blocks
        self.dtype, self._lengths, self._pointers, self._starts = map_index(idx_path(prefix))
        self._bin = np.memmap(bin_path(prefix), dtype=np.uint8, mode="r")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> np.ndarray:
        if not 0 <= number < len(self):
            raise IndexError(f"document {number:,}: {self.prefix} has {len(self):,}, counted from 0")
        first, end = int(self._starts[number]), int(self._starts[number + 1])
        sequences = [self._sequence(index) for index in range(first, end)]
        return sequences[0] if len(sequences) == 1 else np.concatenate([np.zeros(0, self.dtype), *sequences])

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each document, int64 [documents]."""
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._lengths, dtype=np.int64)])
        return np.diff(ends[self._starts])

    def sequences(self, documents: np.ndarray) -> np.ndarray:
        """Return the numbers of the sequences that make up these documents; in most pairs, each document is one."""
        counts = np.diff(self._starts)
        if (counts == 1).all():
            return documents
        chosen = np.zeros(len(self), dtype=bool)
        chosen[documents] = True
        return np.flatnonzero(np.repeat(chosen, counts))

    def _sequence(self, index: int) -> np.ndarray:
        begin = int(self._pointers[index])
        end = begin + int(self._lengths[index]) * self.dtype.itemsize
        if self._blocks is not None:
            self._blocks.verify(begin, end)
        return self._bin[begin:end].view(self.dtype)


def token_counts(prefix: Path, vocab_size: int | None) -> np.ndarray:
    """Count how often each token occurs, int64 [vocab_size]; without a vocabulary, up to the largest token.

    Raises:
        DataError: the pair is damaged, or has a token outside the vocabulary; the message names the byte.
    """
    dtype = check_indexed(prefix).dtype
    counts = np.zeros(vocab_size or 0, np.int64)
    tokens = np.memmap(bin_path(prefix), dtype=dtype, mode="r")
    for first in range(0, len(tokens), _CHUNK):
        part = tokens[first : first + _CHUNK].astype(np.int64)
        _check_part(prefix, first, part, dtype, vocab_size)
        found = np.bincount(part, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    return counts


def check_tokens(prefix: Path, vocab_size: int) -> None:
    """Read all tokens of a pair; raise a DataError that names the byte of a token outside the vocabulary."""
    dtype = map_index(idx_path(prefix))[0]
    tokens = np.memmap(bin_path(prefix), dtype=dtype, mode="r")
    for first in range(0, len(tokens), _CHUNK):
        _check_part(prefix, first, tokens[first : first + _CHUNK], dtype, vocab_size)


def _check_part(prefix: Path, first: int, part: np.ndarray, dtype: np.dtype, vocab_size: int | None) -> None:
    end = vocab_size or _LARGEST_VOCABULARY
    if part.min() >= 0 and part.max() < end:
        return
    row = int(((part < 0) | (part >= end)).argmax())
    known = f" of {vocab_size:,}" if vocab_size is not None else ""
    raise DataError(
        f"{bin_path(prefix)}: byte {(first + row) * dtype.itemsize:,}: token {part[row]} lies outside the tokenizer's "
        f"vocabulary{known}: it was made with another tokenizer"
    )


def unigram_entropy(sources: Sequence[tuple[float, Path]]) -> float:
    """Return the entropy of the tokens' frequencies, -Σ p ln p, in nats per token.

    No model that ignores the context has a lower loss on this text. Samples of the sources are read, so that a corpus
    of any size takes under a second.

    Args:
        sources: the share of each source (they sum to 1) and the prefix of its `.bin/.idx` pair, of at least one token.
    """
    parts = [(share, _sample_counts(prefix)) for share, prefix in sources]
    frequencies = np.zeros(max(len(counts) for _, counts in parts))
    for share, counts in parts:
        frequencies[: len(counts)] += share * counts / counts.sum()
    used = frequencies[frequencies > 0]
    return float(-(used * np.log(used)).sum())


def _sample_counts(prefix: Path) -> np.ndarray:
    """Count how often each token occurs in a sample, [largest token that occurs + 1]."""
    tokens: np.ndarray = np.memmap(bin_path(prefix), dtype=map_index(idx_path(prefix))[0], mode="r")
    if len(tokens) > _BLOCK * _BLOCKS:
        starts = np.linspace(0, len(tokens) - _BLOCK, _BLOCKS).astype(np.int64)
        tokens = np.concatenate([tokens[start : start + _BLOCK] for start in starts])
    return np.bincount(tokens)
