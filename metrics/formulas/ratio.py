"""Compares a figure of two sides by its ratio, and decides whether the difference exceeds the noise between runs.

The noise is that of runs which differ in nothing but their seed: it comes from at least MIN_REPEATS runs on each side
(Welch, 1947), or from other runs of one model, an A/A floor. A run's own spread does not contain it, so that without
either there is no verdict. All variances are of logarithms, so that a ratio and its inverse are equally far from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from efficientbench.metrics.formulas.definitions import standard_deviation
from efficientbench.metrics.formulas.student import t_p_value, t_quantile_95

MIN_REPEATS = 3
"""Fewer runs of a side, or of a model in an A/A floor, do not show their noise."""
SIGNIFICANCE = 0.05
"""The chance of any claim in a comparison whose sides are alike."""

NO_DIFFERENCE = "no difference measurable"
NO_INTERVAL = "one run: use --repeat"
TEXT_ALONE = "the text alone, paired by sequence"

_ROUNDING = 1e-9
_MOST_LOGARITHM = 700.0


@dataclass(frozen=True)
class Estimate:
    """A variance of few values."""

    variance: float
    degrees: float
    """Its degrees of freedom, 1 or more."""

    def __add__(self, other: Estimate) -> Estimate:
        """Return the variance of the sum of independent parts, its degrees of freedom by Satterthwaite (1946)."""
        variance = self.variance + other.variance
        if variance == 0:
            return Estimate(0.0, self.degrees + other.degrees)
        parts = ((each.variance / variance) ** 2 / each.degrees for each in (self, other))
        return Estimate(variance, 1 / math.fsum(parts))

    def p_value(self, difference: float) -> float:
        """Return the chance of a difference at least this large where there is none, by Student's t."""
        if abs(difference) <= _ROUNDING:
            return 1.0
        return t_p_value(difference / math.sqrt(self.variance), self.degrees) if self.variance else 0.0

    @property
    def margin(self) -> float:
        """Half of the 95 % interval."""
        return t_quantile_95(self.degrees) * math.sqrt(self.variance)


@dataclass(frozen=True)
class Side:
    """A figure of the runs on one side of a comparison."""

    mean: float
    """Of the figure's logarithms."""
    variance: float | None
    """Between the runs, of the figure's logarithms; None for a single run."""
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Side:
        """Return the side of these runs' figures, all above 0."""
        logs = [math.log(value) for value in values]
        deviation = standard_deviation(logs)
        return cls(math.fsum(logs) / len(logs), None if deviation is None else deviation**2, len(logs))

    @property
    def noise(self) -> Estimate | None:
        """The variance of the mean; None for a single run."""
        return None if self.variance is None else Estimate(self.variance / self.runs, self.runs - 1)


@dataclass(frozen=True)
class Ratio:
    """The second figure over the first, with its confidence interval."""

    metric: str
    first: float
    second: float
    ratio: float
    low: float | None
    """Lower end of the ratio's own 95 % confidence interval; None if nothing gives one."""
    high: float | None
    basis: str
    """Origin of the interval."""
    runs: tuple[int, int]
    """Of each side."""
    noise_floor: float | None
    """The ratio, above 1, below which 95 % of comparisons of identical models stay, each with as many runs; None if
    too few of them ran."""
    p_value: float | None
    """Chance of so large a difference between identical models; None if too few runs show their noise. `corrected`
    raises it for the other figures that are compared."""

    @property
    def measurable(self) -> bool | None:
        """Whether the difference exceeds the noise between runs; None if that is not known: no verdict."""
        return None if self.p_value is None else self.p_value < SIGNIFICANCE

    @property
    def verdict(self) -> str:
        """The difference in words."""
        if self.measurable is None:
            return f"no verdict: {self.runs[0]} and {self.runs[1]} runs"
        if not self.measurable:
            return NO_DIFFERENCE
        return f"{abs(self.ratio - 1):.1%} {'more' if self.ratio > 1 else 'less'}"


def make_ratio(
    metric: str, first: Side, second: Side, floor: Estimate | None = None, text: Estimate | None = None
) -> Ratio:
    """Return the ratio of geometric means, with its interval and its p value.

    Where both the repeats and the floor show the noise, the one that allows the larger difference decides.

    Args:
        metric: name of the figure.
        first: the side that the ratio is relative to.
        second: the other side.
        floor: variance of the logarithm of one run's figure, between runs of identical models; None if too few ran.
        text: variance of the ratio's logarithm that comes from the choice of the text; None if not known. Added to the
            runs' own, it is the test min F′ of Clark (1973), which is sure of other seeds and of other text.
    """
    difference = second.mean - first.mean
    runs = first.runs, second.runs
    repeats = alike = None
    if first.noise is not None and second.noise is not None:
        repeats = f"{runs[0]} and {runs[1]} repeats", first.noise + second.noise
    if floor is not None:
        alike = "runs of identical models", Estimate(floor.variance * (1 / runs[0] + 1 / runs[1]), floor.degrees)
    deciding = [each for each in (repeats if min(runs) >= MIN_REPEATS else None, alike) if each is not None]
    known = deciding or ([] if repeats is None else [repeats])
    if text is not None:
        known = [(f"{basis}, paired by sequence", noise + text) for basis, noise in known] or [(TEXT_ALONE, text)]
    low = high = p_value = None
    basis = NO_INTERVAL
    if known:
        basis, estimate = max(known, key=lambda each: each[1].p_value(difference))
        low, high = _exp(difference - estimate.margin), _exp(difference + estimate.margin)
        p_value = estimate.p_value(difference) if deciding else None
    return Ratio(
        metric=metric,
        first=math.exp(first.mean),
        second=math.exp(second.mean),
        ratio=_exp(difference),
        low=low,
        high=high,
        basis=basis,
        runs=runs,
        noise_floor=None if alike is None else _exp(alike[1].margin),
        p_value=p_value,
    )


def _exp(logarithm: float) -> float:
    """Return the exponential, within what a float holds: a record of another tool may have any figure."""
    return math.exp(min(max(logarithm, -_MOST_LOGARITHM), _MOST_LOGARITHM))


def corrected(ratios: Sequence[Ratio], same: Mapping[str, str]) -> list[Ratio]:
    """Return the ratios of one comparison with their p values corrected for their number, by `holm`.

    With this correction, two sides that are alike get no claim at all in 95 % of comparisons. It holds for figures that
    depend on each other, as time, power and energy do. Benjamini and Hochberg's (1995) bounds only the share of false
    claims among all claims, and needs figures that are independent or rise together.

    Args:
        ratios: all that one page shows; those without a verdict are no comparisons.
        same: figure → the figure of which it is a form, like tokens/s of the step time, with the same noise.
    """
    p_values = {ratio.metric: ratio.p_value for ratio in ratios if ratio.p_value is not None}
    adjusted = holm(p_values, same)
    return [replace(ratio, p_value=adjusted.get(ratio.metric)) for ratio in ratios]


def holm(p_values: Mapping[str, float], same: Mapping[str, str]) -> dict[str, float]:
    """Return the p values adjusted for their number: the smallest m-fold, the next (m - 1)-fold, never falling.

    Source: Holm (1979). Forms of one figure have one noise, and an interval that holds one of them holds all: together
    they count once, until all of them are claimed. `same` as of `corrected`.
    """
    families: dict[str, list[str]] = {}
    for name in p_values:
        families.setdefault(same.get(name, name), []).append(name)
    largest = sorted((max(p_values[name] for name in names), names) for names in families.values())
    adjusted: dict[str, float] = {}
    # After s families are claimed whole, at the level that takes, the others are compared with m - s.
    levels = [0.0]
    for place, (most, names) in enumerate(largest):
        for name in names:
            at = (max(level, (len(largest) - s) * p_values[name]) for s, level in enumerate(levels))
            adjusted[name] = min(1.0, *at)
        levels.append(max(levels[-1], (len(largest) - place) * most))
    return adjusted
