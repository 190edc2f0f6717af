"""Finds steps that took much longer than the others, and what is known to have caused it."""

from __future__ import annotations

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
