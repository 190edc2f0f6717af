"""pass@k: how likely at least one of k samples of a question is right."""

from __future__ import annotations

from math import comb


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Return the unbiased estimate 1 − C(n − c, k) / C(n, k) (arXiv 2107.03374, equation 1).

    It has the mean of "a hit among the first k", and less noise, since all n samples count.

    Args:
        samples: n, k or more.
        right: c, how many of them are right.
        k: 1 or more.
    """
    return 1 - comb(samples - right, k) / comb(samples, k)
