"""Counts over the tokens of a `.bin/.idx` pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.indexed import bin_path, check_indexed

_CHUNK = 1 << 24  # tokens counted at once
_LARGEST_VOCABULARY = 1 << 24  # a token beyond it is damage, whatever the tokenizer


def token_counts(prefix: Path, vocab_size: int | None) -> np.ndarray:
    """How often each token occurs, int64 [vocab_size]; without a vocabulary, up to the largest token that occurs.

    Raises:
        DataError: the pair is damaged, or holds a token that is negative or outside the vocabulary (with the byte).
    """
    dtype = check_indexed(prefix).dtype
    counts = np.zeros(vocab_size or 0, np.int64)
    tokens = np.memmap(bin_path(prefix), dtype=dtype, mode="r")
    for first in range(0, len(tokens), _CHUNK):
        part = tokens[first : first + _CHUNK].astype(np.int64)
        outside = (part < 0) | (part >= (vocab_size or _LARGEST_VOCABULARY))
        if outside.any():
            row = first + int(outside.argmax())
            known = f" of {vocab_size:,}" if vocab_size is not None else ""
            raise DataError(
                f"{bin_path(prefix)}: byte {row * dtype.itemsize:,}: token {tokens[row]} lies outside the tokenizer's "
                f"vocabulary{known}: it was made with another tokenizer"
            )
        found = np.bincount(part, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    return counts


def entropy_nats(counts: np.ndarray) -> float:
    """Entropy of the frequencies that counts give, -sum p ln p."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def unigram_entropy(prefix: Path, vocab_size: int) -> float:
    """Entropy of the token frequencies in nats per token: the loss of a model without context.

    Raises:
        DataError: as `token_counts` does.
    """
    return entropy_nats(token_counts(prefix, vocab_size))
