"""Finds what took much longer than the others: steps, with what is known to have caused it, devices and links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.records.record_parts import Outlier

DEVIATIONS = 6.0
"""Robust standard deviations by which an outlier is above the median; by chance, one step in a billion is."""
LEAST_EXCESS = 0.1
"""Fraction of the median by which an outlier is above it; a smaller excess does no harm."""

_SIGMA_PER_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def find_outliers(
    numbers: Sequence[int], step_times_s: Sequence[float], causes: Mapping[int, str] | None = None
) -> list[Outlier]:
    """Return the outliers among the measured steps, in their order.

    Median and median absolute deviation set the bound, as outliers do not move these (Leys et al., 2013).

    Args:
        numbers: numbers of the steps. [n]
        step_times_s: times of the same steps. [n]
        causes: number of a step → what is known to have happened there.

    Raises:
        MetricsError: the lengths differ.
    """
    if len(numbers) != len(step_times_s):
        raise MetricsError(f"{len(numbers)} numbers for {len(step_times_s)} steps: each step needs one")
    if not numbers:
        return []
    times = np.asarray(step_times_s, dtype=np.float64)
    median = float(np.median(times))
    sigma = _SIGMA_PER_MAD * float(np.median(np.abs(times - median)))
    bound = median + max(DEVIATIONS * sigma, LEAST_EXCESS * median)
    return [
        Outlier(number, time_s, time_s / median, (causes or {}).get(number))
        for number, time_s in zip(numbers, step_times_s, strict=True)
        if time_s > bound
    ]


LEAST_SLOWNESS, LEAST_SLOWNESS_OF_HOSTS = 0.2, 0.3
"""Fraction by which a slow device or link takes longer than the others. A host's cores and memory serve other processes
too: equal ranks on one core differed by up to 0.21 for seconds."""
FALSE_NAMES = 1e-3
"""The probability that any of equal devices or links is named."""
EXCEPTIONS = 2
"""Rounds in which a slow one may be no slower: what disturbs the others for a moment hides it there."""


def rounds_to_compare(count: int) -> int:
    """Return in how many rounds `count` equal devices or links have to be measured.

    In a round an equal one is above the median of the others with a probability of one half, so that it is above in all
    but EXCEPTIONS of n rounds in one of 2^n / (1 + n + n (n − 1) / 2) cases.
    """
    cases = (sum(math.comb(rounds, each) for each in range(EXCEPTIONS + 1)) / 2**rounds for rounds in itertools.count())
    return next(rounds for rounds, case in enumerate(cases) if case <= FALSE_NAMES / max(count, 2))


def find_slow(rounds: Mapping[str, Sequence[float]], least: float = LEAST_SLOWNESS) -> dict[str, float]:
    """Return which devices or links are slow → their time over the median of the others, the slowest first.

    A slow one takes longer than the others' median in all but EXCEPTIONS of the rounds (a sign test), and in the median
    of the rounds by `least` and by DEVIATIONS robust standard deviations of the others.

    Args:
        rounds: name → its time in each round; all have `rounds_to_compare` rounds.
        least: fraction by which a slow one takes longer than the others.
    """
    if len(rounds) < 2:
        return {}
    times = np.asarray(list(rounds.values()), dtype=np.float64)
    ratios = times / _median_of_others(times)
    factors, usual = np.median(ratios, axis=1), np.median(times, axis=1)
    middles, sigmas = _median_of_others(usual), np.empty_like(usual)
    # Without one entry a median has three values at most, so this takes no square of the number of links.
    for middle in np.unique(middles):
        deviations = _median_of_others(np.abs(usual / middle - 1))
        sigmas[middles == middle] = _SIGMA_PER_MAD * deviations[middles == middle]
    slower = np.sum(ratios > 1, axis=1) >= times.shape[1] - EXCEPTIONS
    slow = slower & (factors - 1 > np.maximum(least, DEVIATIONS * sigmas))
    found = {name: float(factor) for name, factor, is_slow in zip(rounds, factors, slow, strict=True) if is_slow}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _median_of_others(values: np.ndarray) -> np.ndarray:
    """Return for each entry the median of the others along the first axis, of at least two."""
    order = np.argsort(values, axis=0)
    places, ordered, others = np.argsort(order, axis=0), np.take_along_axis(values, order, axis=0), len(values) - 1

    def at(place: int) -> np.ndarray:
        return np.take_along_axis(ordered, place + (places <= place), axis=0)

    return (at((others - 1) // 2) + at(others // 2)) / 2


def disturbed_steps(
    numbers: Sequence[int],
    begins_s: Sequence[float],
    step_times_s: Sequence[float],
    disturbances: Sequence[Disturbance],
) -> dict[int, str]:
    """Return the number of each step during which others used a device → who they were.

    Args:
        numbers: numbers of the steps. [n]
        begins_s: when each step began. [n]
        step_times_s: times of the same steps. [n]
        disturbances: times in which others used a device, on the clock of `begins_s`.
    """
    users: dict[int, dict[str, None]] = {}
    for number, begin_s, time_s in zip(numbers, begins_s, step_times_s, strict=True):
        for disturbance in disturbances:
            if disturbance.begin_s < begin_s + time_s and begin_s < disturbance.end_s:
                users.setdefault(number, {})[f"others on the device: {disturbance.description}"] = None
    return {number: "; ".join(causes) for number, causes in users.items()}
