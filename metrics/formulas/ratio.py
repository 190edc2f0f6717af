"""Compares a figure of two sides by its ratio, and decides whether the difference exceeds the noise between runs.

The noise is the spread of runs that differ in their seed alone. Its estimate comes from at least MIN_REPEATS runs on
each side (Welch, 1947), or from runs of identical models, an A/A floor. The spread within a run does not contain it:
without an estimate there is no verdict. All variances are of logarithms, so that a ratio and its inverse are equally
far from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from efficientbench.metrics.formulas.definitions import standard_deviation
from efficientbench.metrics.formulas.student import t_p_value, t_quantile_95

MIN_REPEATS = 3
"""Fewest runs of a side, or of a model in an A/A floor, that show the noise between runs."""
SIGNIFICANCE = 0.05
"""The chance that a comparison of identical models makes any claim."""

NO_DIFFERENCE = "no difference measurable"
NO_INTERVAL = "one run: use --repeat"
EQUAL = "runs that are equal to the last bit show no noise"
TEXT_ALONE = "the text alone, paired by sequence"

_ROUNDING = 1e-9
_MOST_LOGARITHM = 700.0


@dataclass(frozen=True)
class Estimate:
    """A variance estimated from few values."""

    variance: float
    degrees: float
    """Degrees of freedom of the estimate, 1 or more."""

    def __add__(self, other: Estimate) -> Estimate:
        """Return the variance of the sum of independent parts, with degrees of freedom by Satterthwaite (1946)."""
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
    """Mean of the figure's logarithms."""
    variance: float | None
    """Variance of the figure's logarithms between the runs; None where they do not show it: a single run, or equal."""
    runs: int

    @classmethod
    def of(cls, values: Sequence[float], counted: bool = False) -> Side:
        """Return the side whose runs have these values of the figure, all above 0.

        What is measured is never equal in two runs to the last bit: a spread of exactly 0 is no noise. `counted`: the
        figure is a whole number, such as bytes, which may be.
        """
        logs = [math.log(value) for value in values]
        deviation = standard_deviation(logs)
        if len(set(values)) == 1 and not counted:
            deviation = None
        return cls(math.fsum(logs) / len(logs), None if deviation is None else deviation**2, len(logs))

    @property
    def noise(self) -> Estimate | None:
        """The variance of the mean; None where the runs do not show it."""
        return None if self.variance is None else Estimate(self.variance / self.runs, self.runs - 1)


@dataclass(frozen=True)
class Objection:
    """Why a figure of two sides is not judged, whatever its noise is."""

    short: str
    """In two or three words, for a table."""
    why: str
    """In words that follow a colon."""


@dataclass(frozen=True)
class Ratio:
    """The second figure over the first, with its confidence interval."""

    metric: str
    first: float
    second: float
    ratio: float
    low: float | None
    """Lower end of the ratio's own 95 % confidence interval; None without an estimate of the noise."""
    high: float | None
    basis: str
    """What the interval is estimated from, in words."""
    runs: tuple[int, int]
    """Number of runs of each side."""
    noise_floor: float | None
    """The ratio, above 1, below which 95 % of comparisons of identical models with as many runs stay; None if too few
    identical models ran."""
    p_value: float | None
    """Chance of so large a difference between identical models; None if too few runs show the noise. `corrected`
    raises it for the number of figures compared."""
    objection: Objection | None = None
    """Why there is no verdict, although the noise may be known."""
    carried: str = ""
    """What must be known of one side alone beside the verdict."""

    @property
    def measurable(self) -> bool | None:
        """Whether the difference exceeds the noise between runs; None if that is not known: no verdict."""
        return None if self.p_value is None else self.p_value < SIGNIFICANCE

    @property
    def verdict(self) -> str:
        """The difference in words, with what is carried."""
        if self.measurable is None:
            return (
                f"no verdict: {self.objection.short if self.objection else f'{self.runs[0]} and {self.runs[1]} runs'}"
            )
        return f"{self.change if self.measurable else NO_DIFFERENCE}{f' ({self.carried})' if self.carried else ''}"

    @property
    def change(self) -> str:
        """The second figure against the first, in percent."""
        return f"{abs(self.ratio - 1):.1%} {'more' if self.ratio > 1 else 'less'}"


def make_ratio(
    metric: str, first: Side, second: Side, floor: Estimate | None = None, text: Estimate | None = None
) -> Ratio:
    """Return the ratio of geometric means, with its interval and its p value.

    Where both the repeats and the floor estimate the noise, the estimate with the larger p value decides.

    Args:
        metric: name of the figure.
        first: the side that the ratio is relative to.
        second: the other side.
        floor: variance of the logarithm of one run's figure, between runs of identical models; None if too few ran.
        text: variance of the ratio's logarithm that comes from the choice of the text; None if not known. Added to the
            variance between runs, it makes the test min F′ of Clark (1973), which holds for other seeds and other text.
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
    basis = NO_INTERVAL if min(runs) == 1 else EQUAL
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
    """Return the exponential, clipped to what a float holds: another tool's record may have any figure."""
    return math.exp(min(max(logarithm, -_MOST_LOGARITHM), _MOST_LOGARITHM))


def corrected(ratios: Sequence[Ratio], same: Mapping[str, str]) -> list[Ratio]:
    """Return the ratios of one comparison with their p values corrected for their number, by `holm`.

    With this correction, 95 % of comparisons of identical models make no claim at all. It holds for figures that depend
    on each other, as time, power and energy do. Benjamini and Hochberg's (1995) bounds only the share of false claims
    among all claims, and needs figures that are independent or rise together.

    Args:
        ratios: all ratios that one page shows; a ratio without a verdict does not count.
        same: figure → the figure that it restates with the same noise, as tokens/s restates the step time.
    """
    p_values = {ratio.metric: ratio.p_value for ratio in ratios if ratio.p_value is not None}
    adjusted = holm(p_values, same)
    return [replace(ratio, p_value=adjusted.get(ratio.metric)) for ratio in ratios]


def holm(p_values: Mapping[str, float], same: Mapping[str, str]) -> dict[str, float]:
    """Return the p values adjusted for their number: the smallest m-fold, the next (m - 1)-fold, never decreasing.

    Source: Holm (1979). Figures that restate one another share their noise, and an interval that holds for one holds
    for all: such a family counts once, until all of its figures are claimed. `same`: as for `corrected`.
    """
    families: dict[str, list[str]] = {}
    for name in p_values:
        families.setdefault(same.get(name, name), []).append(name)
    largest = sorted((max(p_values[name] for name in names), names) for names in families.values())
    adjusted: dict[str, float] = {}
    # Once all figures of s families are claimed, at the level that this takes, the others count as m - s.
    levels = [0.0]
    for place, (most, names) in enumerate(largest):
        for name in names:
            at = (max(level, (len(largest) - s) * p_values[name]) for s, level in enumerate(levels))
            adjusted[name] = min(1.0, *at)
        levels.append(max(levels[-1], (len(largest) - place) * most))
    return adjusted
