"""Choose the next token from logits, on the host: the same in any batch, on any device and by any number of ranks.

K = candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from efficientbench.basics.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen."""

    temperature: float = 0.0
    """Divides the logits; 0: always the most likely token."""
    top_k: int | None = None
    """How many of the most likely tokens may be chosen; None: all."""
    top_p: float = 1.0
    """Of those the most likely ones may be chosen that together have this probability (arXiv 1904.09751)."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that is none."""
        for name in ("temperature", "top_p"):
            if not np.isfinite(getattr(self, name)):
                raise ConfigError(f"{name}: {getattr(self, name)} is no finite number")

    def candidates(self, vocabulary: int) -> int:
        """Return how many of the largest logits of a row decide."""
        if self.temperature == 0:
            return 1
        return min(self.top_k or vocabulary, vocabulary)


def uniform(seed: int, prompt: int, sample: int, step: int) -> float:
    """Return the number in [0, 1) that decides one token, by Philox (Salmon et al., SC 2011) at the place it counts.

    Nothing depends on what was drawn before, so neither on the batch nor on the rows that are left in it.
    """
    counter = np.random.Philox(key=seed, counter=[step, sample, prompt, 0])
    return float(np.random.Generator(counter).random())


def distribution(logits: np.ndarray, tokens: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that may be chosen, in the order of their numbers, and their cumulative probabilities.

    The order is not that of the logits: two almost equal ones would change places from one device to another.

    Args:
        logits: [K], those of the candidates.
        tokens: [K], their numbers.
        sampling: with a temperature above 0.

    Returns:
        Numbers [k], and cumulative probabilities [k] in float64, the last of which is 1.
    """
    below = logits.astype(np.float64) - logits.max()
    # A temperature near 0 takes what lies below the largest to -inf, whose share is 0.
    with np.errstate(over="ignore"):
        shares = np.exp(below / sampling.temperature)
    shares /= shares.sum()
    if sampling.top_p < 1:
        order = np.lexsort((tokens, -shares))
        before = np.cumsum(shares[order]) - shares[order]
        order = order[: max(int((before < sampling.top_p).sum()), 1)]
        shares, tokens = shares[order], tokens[order]
    order = np.argsort(tokens)
    cumulative = np.cumsum(shares[order])
    return tokens[order], cumulative / cumulative[-1]


def choose(logits: np.ndarray, tokens: np.ndarray, sampling: Sampling, number: float) -> int:
    """Return the token for a number in [0, 1), by inverse CDF; without a temperature the first, whose logit is largest.

    `logits` and `tokens` [K] are those of the candidates.
    """
    if sampling.temperature == 0:
        return int(tokens[0])
    ordered, cumulative = distribution(logits, tokens, sampling)
    return int(ordered[np.searchsorted(cumulative, number, side="right")])
