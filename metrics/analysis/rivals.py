"""Find which of a report's alternative rows is best in a figure, and which rows noise does not set apart from it.

The best row is chosen after the fact, so that every pair of rows counts as a comparison; each is judged as `compare`
does. The spreads of three rows or more are pooled, which makes up for the number of pairs, and a pair's p value is that
of any pair of so many rows (Tukey; Bonferroni where the spreads are a pair's own): where all models are alike, a report
claims no difference at all in 95 % of sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from efficientbench.metrics.analysis.compare import SAME, why_not
from efficientbench.metrics.analysis.conditions import Difference
from efficientbench.metrics.analysis.judging import Judge, doubt
from efficientbench.metrics.analysis.noise import IdenticalRuns
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.ratio import Objection, Ratio, corrected
from efficientbench.metrics.records.record import FIGURES

QUESTIONS = ("energy_j_per_token", "tokens_per_s", "amu_gb", "validation_loss")
"""Figures by which a report says which row is best."""


@dataclass(frozen=True)
class Standing:
    """How a set's rows stand in one figure. Rows are named by their index in the set."""

    metric: str
    best: int | None
    """The row with the best figure, by more than noise or not; None where no row has the figure."""
    worse: dict[int, Ratio] = field(default_factory=dict)
    """Rows that are worse by more than noise → the ratio, best over row."""
    level: tuple[int, ...] = ()
    """Rows that differ from the best by no more than noise."""
    open: dict[int, Objection | None] = field(default_factory=dict)
    """Rows without a verdict → the objection to one; None: too few runs to estimate the noise."""
    apart: dict[int, tuple[Difference, ...]] = field(default_factory=dict)
    """Rows that are not compared with the best → the conditions in which they differ from it."""
    unavailable: dict[int, str] = field(default_factory=dict)
    """Rows without the figure, or whose figure takes no part → the reason."""


class Rivals:
    """A set of rows that may be compared, each a run or its repeats."""

    def __init__(self, groups: Sequence[Group], identical: IdenticalRuns) -> None:
        """Take the set's rows, and the identical runs among all rows of the report."""
        self.groups = tuple(groups)
        self._identical = identical
        self._standings: dict[str, Standing] = {}
        self._ratios: dict[tuple[int, int], dict[str, Ratio]] = {}
        self.pairs = max(len(self.groups) * (len(self.groups) - 1) // 2, 1)

    def differences(self, first: int, second: int) -> tuple[Difference, ...]:
        """Return the conditions that two rows do not share; rows with such conditions are not compared."""
        return self._identical.differences(self.groups[first], self.groups[second])

    def ratio(self, metric: str, first: int, second: int) -> Ratio | None:
        """Return the ratio of a figure, second over first, its p value corrected for all comparisons of the set.

        Return None where a row lacks the figure, or where the rows' conditions differ.
        """
        if (first, second) not in self._ratios:
            self._ratios[first, second] = {} if self.differences(first, second) else self._judged(first, second)
        return self._ratios[first, second].get(metric)

    def _judged(self, first: int, second: int) -> dict[str, Ratio]:
        """Return the ratios of all figures that two rows have."""
        one, other = self.groups[first], self.groups[second]
        line = [group for place, group in enumerate(self.groups) if not self.differences(first, place)]
        judge = Judge(one, other, self._identical.beside(one, other), names=(one.name, other.name), line=line)
        ratios = [judge.ratio(metric) for metric in QUESTIONS if self.why_not(metric, first, second) is None]
        return {ratio.metric: ratio for ratio in corrected(ratios, SAME, judge.order, self.pairs)}

    def why_not(self, metric: str, first: int, second: int) -> str | None:
        """Return why a figure of two rows has no ratio; None where it has one."""
        return why_not(metric, [*self.groups[first].records, *self.groups[second].records])

    def standing(self, metric: str) -> Standing:
        """Return how the rows stand in a figure."""
        if metric not in self._standings:
            self._standings[metric] = self._compare(metric)
        return self._standings[metric]

    def _compare(self, metric: str) -> Standing:
        means = {place: mean_of(group, metric) for place, group in enumerate(self.groups)}
        values = {place: mean for place, mean in means.items() if mean is not None}
        reasons = {place: _why_out(metric, self.groups[place]) or "" for place in means if place not in values}
        if not values:
            return Standing(metric, None, unavailable=reasons)
        sign = -1 if FIGURES[metric].better == "higher" else 1
        best = min(values, key=lambda place: sign * values[place])
        worse: dict[int, Ratio] = {}
        apart: dict[int, tuple[Difference, ...]] = {}
        level, unsure = [], dict[int, Objection | None]()
        for place in values:
            if place == best:
                continue
            ratio = self.ratio(metric, place, best)
            if ratio is None:
                apart[place] = self.differences(place, best)
            elif ratio.measurable is None:
                unsure[place] = ratio.objection
            elif ratio.measurable:
                worse[place] = ratio
            else:
                level.append(place)
        return Standing(metric, best, worse, tuple(level), unsure, apart, reasons)


def mean_of(group: Group, metric: str) -> float | None:
    """Return the geometric mean of a figure over the repeats, as ratios use it.

    Return None where a repeat lacks the figure, where it is in doubt, or where it is a loss that is not compared.
    """
    if _why_out(metric, group) is not None:
        return None
    values = group.values(metric)
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _why_out(metric: str, group: Group) -> str | None:
    return why_not(metric, group.records) or doubt(metric, group.records)
