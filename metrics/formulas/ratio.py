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

from efficientbench.basics.grouped import grouped
from efficientbench.metrics.formulas.definitions import standard_deviation
from efficientbench.metrics.formulas.student import range_p_value, t_p_value, t_quantile, t_quantile_95

MIN_REPEATS = 3
"""Fewest runs of a side, or of a model in an A/A floor, that show the noise between runs."""
SIGNIFICANCE = 0.05
"""The chance that a comparison of identical models makes any claim."""
FIRST_SHARE = 0.94
"""The share of SIGNIFICANCE with which the first figure is judged; the rest is kept for the others."""
POWER = 0.8
"""The chance with which a number of repeats finds a difference."""
MOST_REPEATS = 1000

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

    def p_value(self, difference: float, rows: int = 2) -> float:
        """Return the chance of a difference at least this large where there is none, by Student's t.

        `rows` that share the variance: the chance that any two of them differ so, by Tukey's range.
        """
        if abs(difference) <= _ROUNDING:
            return 1.0
        if not self.variance:
            return 0.0
        t = difference / math.sqrt(self.variance)
        return t_p_value(t, self.degrees) if rows == 2 else range_p_value(t, rows, self.degrees)

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
    level: float
    """The figure's mean over the runs, in its own unit, as reports print it."""

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
        variance, level = None if deviation is None else deviation**2, math.fsum(values) / len(values)
        return cls(math.fsum(logs) / len(logs), variance, len(logs), level)

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
    """The mean of the first side's runs, as reports print it."""
    second: float
    ratio: float
    """That of geometric means, which a ratio and its inverse share."""
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
    p_alone: float | None = None
    """The same where the repeats of the two sides alone show their noise, and no further rows'."""
    spread: float | None = None
    """Standard deviation of the logarithm of one run's figure, as the verdict takes it; None without a verdict."""
    objection: Objection | None = None
    """Why there is no verdict, although the noise may be known."""
    carried: str = ""
    """What must be known of one side alone beside the verdict."""
    comparisons: int = 1
    """Number of comparisons of rows that the p value is corrected for from the start."""

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
    metric: str,
    first: Side,
    second: Side,
    floor: Estimate | None = None,
    text: Estimate | None = None,
    pooled: Estimate | None = None,
    rows: int = 2,
    paired: Estimate | None = None,
) -> Ratio:
    """Return the ratio of geometric means, with its interval and its p value.

    MIN_REPEATS on both sides decide by their own spread (Welch's test, or that of `pooled`), else the floor does.

    Args:
        metric: name of the figure.
        first: the side that the ratio is relative to.
        second: the other side.
        floor: variance of the logarithm of one run's figure, between runs of identical models; None if too few ran.
        text: variance of the ratio's logarithm that comes from the choice of the text; None if not known. Added to the
            variance between runs, it makes the test min F′ of Clark (1973), which holds for other seeds and other text.
        pooled: variance of the logarithm of one run's figure within the rows of a line, both sides among them. The
            larger of it and the mean of the sides' own stands for both: a side that varies more than the other rows
            is not judged by their spread, and the p value is that of any two of the rows.
        rows: number of rows of the line.
        paired: variance of the ratio's logarithm, by the runs' differences at the same seeds; None: not paired. It
            stands for the sides' own spreads: what a seed does to both sides is no noise.
    """
    difference = second.mean - first.mean
    runs = first.runs, second.runs
    mean_of = 1 / runs[0] + 1 / runs[1]
    alike = None if floor is None else Estimate(floor.variance * mean_of, floor.degrees)
    basis, noise = NO_INTERVAL if min(runs) == 1 else EQUAL, alike
    decides = alike is not None
    if first.noise is not None and second.noise is not None and (alike is None or min(runs) >= MIN_REPEATS):
        basis, noise = f"{runs[0]} and {runs[1]} repeats", first.noise + second.noise
        decides = min(runs) >= MIN_REPEATS
        if paired is not None:
            basis, noise = f"{runs[0]} repeats, losses paired by seed", paired
    elif alike is not None:
        basis = "runs of identical models"
    shared, line = noise, 2
    if noise is not alike and noise is not None and pooled is not None:
        shared, line = Estimate(max(pooled.variance * mean_of, noise.variance), pooled.degrees), rows
    if text is not None:
        basis = TEXT_ALONE if noise is None else f"{basis}{', paired' if paired is None else ' and'} by sequence"
        noise, shared = (text if each is None else each + text for each in (noise, shared))
    low = high = p_value = p_alone = spread = None
    if noise is not None and shared is not None:
        low, high = _exp(difference - shared.margin), _exp(difference + shared.margin)
        if decides:
            p_value, p_alone = shared.p_value(difference, line), noise.p_value(difference)
            spread = math.sqrt(shared.variance / mean_of)
    return Ratio(
        metric=metric,
        first=first.level,
        second=second.level,
        ratio=_exp(difference),
        low=low,
        high=high,
        basis=basis,
        runs=runs,
        noise_floor=None if alike is None else _exp(alike.margin),
        p_value=p_value,
        comparisons=line * (line - 1) // 2,
        p_alone=p_alone,
        spread=spread,
    )


def _exp(logarithm: float) -> float:
    """Return the exponential, clipped to what a float holds: another tool's record may have any figure."""
    return math.exp(min(max(logarithm, -_MOST_LOGARITHM), _MOST_LOGARITHM))


def corrected(
    ratios: Sequence[Ratio], same: Mapping[str, str], order: Sequence[str], comparisons: int = 1
) -> list[Ratio]:
    """Return the ratios of one comparison with their p values corrected for their number.

    The first figure of `order` that has a p value is judged at FIRST_SHARE of the level, the others by `holm` at what
    is left, and once the first is claimed, at the whole level (a graph of Bretz et al., 2009). So 95 % of comparisons
    of identical models make no claim at all, and the figure that is asked first is hardly corrected. That holds for
    figures that depend on each other, as time, power and energy do. Before the first is claimed, the others are judged
    by `p_alone`: the spreads of further rows are a worse guide the smaller the level is.

    Args:
        ratios: all ratios that one page shows; a ratio without a verdict does not count.
        same: figure → the figure that it restates with the same noise, as tokens/s restates the step time.
        order: figures in the order in which they are asked, chosen before any of them was measured.
        comparisons: number of comparisons that share the level, as of all pairs of a report's rows (Bonferroni,
            beyond those that a p value is corrected for from the start).
    """
    judged = {each.metric: (each.p_value or 0.0) / each.comparisons for each in ratios if each.p_value is not None}
    alone = {each.metric: each.p_alone or 0.0 for each in ratios}
    first = first_figure(ratios, same, order)
    own = {name: p_value for name, p_value in judged.items() if same.get(name, name) == first}
    gate = max(own.values(), default=0.0) / FIRST_SHARE
    share = FIRST_SHARE if own else 0.0
    adjusted = {name: p_value / FIRST_SHARE for name, p_value in own.items()}
    others = [name for name in judged if name not in own]
    after, before = (holm({name: found[name] for name in others}, same) for found in (judged, alone))
    adjusted |= {name: min(max(after[name], gate), before[name] / (1 - share)) for name in others}
    return [
        replace(ratio, p_value=min(1.0, comparisons * adjusted[ratio.metric]) if ratio.metric in adjusted else None)
        for ratio in ratios
    ]


def first_figure(ratios: Sequence[Ratio], same: Mapping[str, str], order: Sequence[str]) -> str | None:
    """Return the figure of `order` that is judged first, with the arguments of `corrected`; None if none can be."""
    judged = {same.get(ratio.metric, ratio.metric) for ratio in ratios if ratio.p_value is not None}
    return next((name for name in order if name in judged), None)


def repeats_to_tell(ratio: float, spread: float, comparisons: int = 1) -> int | None:
    """Return how many repeats of each side find a difference, as the first figure, with a chance of POWER.

    Args:
        ratio: the difference to find, one side over the other.
        spread: standard deviation of the logarithm of one run's figure.
        comparisons: number of comparisons that share the level, as for `corrected`.

    Returns:
        The number, at least MIN_REPEATS; None above MOST_REPEATS.
    """
    apart = math.exp(abs(math.log(ratio)))
    counts = range(MIN_REPEATS, MOST_REPEATS + 1)
    return next((runs for runs in counts if apart >= smallest_told(spread, runs, comparisons)), None)


def smallest_told(spread: float, repeats: int, comparisons: int = 1) -> float:
    """Return the smallest ratio above 1 that so many repeats of each side find, as `repeats_to_tell` has it.

    Level and power of Student's t add their quantiles (Guenther, 1981).
    """
    degrees = 2 * (repeats - 1)
    quantiles = t_quantile(degrees, SIGNIFICANCE * FIRST_SHARE / comparisons) + t_quantile(degrees, 2 * (1 - POWER))
    return _exp(quantiles * spread * math.sqrt(2 / repeats))


def holm(p_values: Mapping[str, float], same: Mapping[str, str]) -> dict[str, float]:
    """Return the p values adjusted for their number: the smallest m-fold, the next (m - 1)-fold, never decreasing.

    Source: Holm (1979). Figures that restate one another share their noise, and an interval that holds for one holds
    for all: such a family counts once, until all of its figures are claimed. `same`: as for `corrected`.
    """
    families = grouped((same.get(name, name), name) for name in p_values)
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
