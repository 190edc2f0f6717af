"""Token frequencies in tokenized text, from a sample of it: a corpus of any size takes under a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from efficientbench.data_tools.tokens.indexed import bin_path, idx_path, map_index

_BLOCK = 1 << 16
"""Adjacent tokens that are read at once."""
_BLOCKS = 256
"""Blocks of a sample, evenly spaced over the corpus: 17 million tokens."""


def unigram_entropy(sources: Sequence[tuple[float, Path]]) -> float:
    """Return the entropy of the tokens' frequencies, -Σ p ln p, in nats per token.

    No model that ignores the context has a lower loss on this text.

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
