"""Counts over the tokens of a `.bin/.idx` pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_tools.errors import DataError
from data_tools.indexed import bin_path, check_indexed

_CHUNK = 1 << 24  # tokens counted at once


def token_counts(prefix: Path, vocab_size: int) -> np.ndarray:
    """How often each token occurs, int64 [vocab_size].

    Raises:
        DataError: the pair is damaged, or holds a token outside the vocabulary (with the byte).
    """
    dtype = check_indexed(prefix).dtype
    counts = np.zeros(vocab_size, np.int64)
    tokens = np.memmap(bin_path(prefix), dtype=dtype, mode="r")
    for first in range(0, len(tokens), _CHUNK):
        part = tokens[first : first + _CHUNK].astype(np.int64)
        outside = (part < 0) | (part >= vocab_size)
        if outside.any():
            row = first + int(outside.argmax())
            raise DataError(
                f"{bin_path(prefix)}: byte {row * dtype.itemsize:,}: token {tokens[row]} lies outside the tokenizer's "
                f"vocabulary of {vocab_size:,}: it was made with another tokenizer"
            )
        counts += np.bincount(part, minlength=vocab_size)
    return counts


def unigram_entropy(prefix: Path, vocab_size: int) -> float:
    """Entropy of the token frequencies, -sum p ln p, in nats per token: the loss of a model without context."""
    counts = token_counts(prefix, vocab_size)
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())
