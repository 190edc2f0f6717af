"""Sample the next token from logits on the host, so that batch, device and number of ranks do not change the draw.

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
    """The divisor of the logits; 0: always the most likely token."""
    top_k: int | None = None
    """Sample from this many of the most likely tokens; None: from all."""
    top_p: float = 1.0
    """Nucleus sampling: sample from the fewest most likely tokens with this total probability (arXiv 1904.09751)."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that is not finite."""
        for name in ("temperature", "top_p"):
            if not np.isfinite(getattr(self, name)):
                raise ConfigError(f"{name}: {getattr(self, name)} is no finite number")

    def candidates(self, vocabulary: int) -> int:
        """Return K, how many of a row's largest logits are candidates."""
        if self.temperature == 0:
            return 1
        return min(self.top_k or vocabulary, vocabulary)


def uniform(seed: int, prompt: int, sample: int, step: int) -> float:
    """Return the random number in [0, 1) of one token: Philox (Salmon et al., SC 2011) with the token's own counter.

    It does not depend on earlier draws, hence neither on the batch nor on the rows that are left in it.
    """
    counter = np.random.Philox(key=seed, counter=[step, sample, prompt, 0])
    return float(np.random.Generator(counter).random())


def distribution(logits: np.ndarray, tokens: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens to sample from, in the order of their ids, and their cumulative probabilities.

    Not in the order of the logits: two almost equal logits may swap places on another device.

    Args:
        logits: the candidates' logits [K].
        tokens: the candidates' ids [K].
        sampling: the sampling parameters, with a temperature above 0.

    Returns:
        Ids [k], and cumulative probabilities [k] in float64, the last of which is 1.
    """
    below = logits.astype(np.float64) - logits.max()
    # A temperature near 0 takes all logits but the largest to -inf, whose share is 0.
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
    """Return the token for a number in [0, 1), by inverse CDF; at temperature 0 the first, whose logit is the largest.

    `logits` and `tokens` [K] are the candidates'.
    """
    if sampling.temperature == 0:
        return int(tokens[0])
    ordered, cumulative = distribution(logits, tokens, sampling)
    return int(ordered[np.searchsorted(cumulative, number, side="right")])
