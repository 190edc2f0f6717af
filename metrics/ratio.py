"""Compares two figures by their ratio, and decides whether it exceeds the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.metrics.definitions import Z_95, t_quantile_95

_ROUNDING = 1e-9

NO_DIFFERENCE = "no difference measurable"
WITHIN_A_RUN = "the spread within a run"
NO_INTERVAL = "one run: use --repeat"


@dataclass(frozen=True)
class Ratio:
    """The second figure over the first, with its confidence interval."""

    metric: str
    first: float
    second: float
    ratio: float
    low: float | None
    """Lower end of the ratio's 95 % confidence interval; None if neither repeats nor a run's own spread give one."""
    high: float | None
    basis: str
    """Origin of the interval."""
    noise_floor: float | None
    """The largest ratio, above 1, between identical models; None if none ran."""

    @property
    def measurable(self) -> bool | None:
        """Whether the difference exceeds both the interval and the noise floor; None if neither is known."""
        # In logarithms, so that a ratio and its inverse are equally far from 1.
        if self.noise_floor is not None and abs(math.log(self.ratio)) <= math.log(self.noise_floor) + _ROUNDING:
            return False
        if self.low is None or self.high is None:
            return None
        return not self.within_interval

    @property
    def within_interval(self) -> bool:
        """Whether the interval holds the ratio 1."""
        return self.low is not None and self.high is not None and self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """The difference in words."""
        if self.measurable is None:
            return NO_INTERVAL
        if not self.measurable:
            return NO_DIFFERENCE
        return f"{abs(self.ratio - 1):.1%} {'more' if self.ratio > 1 else 'less'}"


def make_ratio(
    metric: str,
    first: Sequence[float],
    second: Sequence[float],
    errors: Sequence[Sequence[float | None]],
    floor: float | None,
) -> Ratio:
    """Return the ratio of geometric means, with its interval from the repeats, else from the runs' own spread.

    Args:
        metric: name of the figure.
        first: the figure of each run of the first side, above 0.
        second: the figure of each run of the second side, above 0.
        errors: of both sides, each run's relative standard error; None if unknown.
        floor: the largest ratio between identical models; None if none ran.
    """
    logs = [[math.log(value) for value in values] for values in (first, second)]
    means = [math.fsum(each) / len(each) for each in logs]
    difference = means[1] - means[0]
    margin, basis = None, NO_INTERVAL
    if min(len(first), len(second)) > 1:
        margin, basis = _welch_margin(logs, means), f"{len(first)} and {len(second)} repeats"
    elif None not in (*errors[0], *errors[1]):
        variance = sum(math.fsum((error or 0.0) ** 2 for error in side) / len(side) ** 2 for side in errors)
        margin, basis = Z_95 * math.sqrt(variance), WITHIN_A_RUN
    low, high = (None, None) if margin is None else (math.exp(difference - margin), math.exp(difference + margin))
    return Ratio(metric, math.exp(means[0]), math.exp(means[1]), math.exp(difference), low, high, basis, floor)


def _welch_margin(logs: Sequence[Sequence[float]], means: Sequence[float]) -> float:
    """Return half of the 95 % interval of the difference of two means of unequal variances (Welch, 1947)."""
    parts = [
        math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
        for values, mean in zip(logs, means, strict=True)
    ]
    variance = sum(parts)
    if variance == 0:
        return 0.0
    degrees = variance**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    return t_quantile_95(max(int(degrees), 1)) * math.sqrt(variance)
