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
from functools import partial

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.compare import COSTS, SAME, why_not
from efficientbench.metrics.analysis.conditions import Difference
from efficientbench.metrics.analysis.judging import Judge, doubt
from efficientbench.metrics.analysis.noise import IdenticalRuns
from efficientbench.metrics.analysis.quality import Cost, cost_to_loss, lowest_common_loss
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.ratio import Objection, Ratio, corrected
from efficientbench.metrics.records.figure import Better
from efficientbench.metrics.records.record import FIGURES, RunRecord

QUESTIONS = ("energy_j_per_token", "tokens_per_s", "amu_gb", "validation_loss")
"""Figures by which a report says which row is best."""
TO_THE_LOSS = ("time_to_loss_s", "energy_to_loss_j")
"""Costs, of COSTS, by which a report says which row to choose: to the loss that all rows with losses surely reached."""
NO_COMMON_LOSS = "no two rows have losses that may be compared"


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
        self.target_loss = _common_loss(groups)
        """The validation loss to which costs count, nats; None where no two rows have losses."""
        self._costs: dict[int, Cost | str] = {}
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
        ratios = [
            judge.ratio(metric, partial(self._cost, metric) if metric in TO_THE_LOSS else None)
            for metric in (*QUESTIONS, *TO_THE_LOSS)
            if self.why_not(metric, first, second) is None
        ]
        return {ratio.metric: ratio for ratio in corrected(ratios, SAME, judge.order, self.pairs)}

    def why_not(self, metric: str, first: int, second: int) -> str | None:
        """Return why a figure of two rows has no ratio; None where it has one."""
        if metric in TO_THE_LOSS:
            return self._why_no_cost(metric, first) or self._why_no_cost(metric, second)
        return why_not(metric, [*self.groups[first].records, *self.groups[second].records])

    def mean(self, metric: str, place: int) -> float | None:
        """Return the geometric mean of a figure over a row's repeats, as ratios use it.

        Return None where a repeat lacks the figure, where it is in doubt, or where it is a loss that is not compared.
        """
        if self._why_out(metric, place) is not None:
            return None
        group = self.groups[place]
        costs = [self._cost(metric, record) or 0.0 for record in group.records] if metric in TO_THE_LOSS else None
        values = group.values(metric) if costs is None else costs
        return math.exp(math.fsum(map(math.log, values)) / len(values))

    def _why_out(self, metric: str, place: int) -> str | None:
        records = self.groups[place].records
        why = self._why_no_cost(metric, place) if metric in TO_THE_LOSS else why_not(metric, records)
        return why or doubt(metric, records)

    def _why_no_cost(self, metric: str, place: int) -> str | None:
        """Return why a row has no such cost; None where each repeat has one above 0."""
        for record in self.groups[place].records:
            found = self._cost_or_why(record)
            if isinstance(found, str):
                return found
            if not COSTS[metric](found):
                return (
                    f"{record.run}: {record.unavailable.get('energy_j', 'the energy until a validation is not known')}"
                )
        return None

    def _cost(self, metric: str, record: RunRecord) -> float | None:
        found = self._cost_or_why(record)
        return None if isinstance(found, str) else COSTS[metric](found)

    def _cost_or_why(self, record: RunRecord) -> Cost | str:
        """Return what a run took to the common loss, or why that is not known; each pair of rows asks this anew."""
        if id(record) not in self._costs:
            try:
                found: Cost | str = (
                    NO_COMMON_LOSS if self.target_loss is None else cost_to_loss(record, self.target_loss)
                )
            except MetricsError as error:
                found = str(error)
            self._costs[id(record)] = found
        return self._costs[id(record)]

    def standing(self, metric: str) -> Standing:
        """Return how the rows stand in a figure."""
        if metric not in self._standings:
            self._standings[metric] = self._compare(metric)
        return self._standings[metric]

    def _compare(self, metric: str) -> Standing:
        means = {place: self.mean(metric, place) for place in range(len(self.groups))}
        values = {place: mean for place, mean in means.items() if mean is not None}
        reasons = {place: self._why_out(metric, place) or "" for place in means if place not in values}
        if not values:
            return Standing(metric, None, unavailable=reasons)
        sign = -1 if better(metric) == "higher" else 1
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


def better(metric: str) -> Better | None:
    """Return which way a figure or a cost is better."""
    return "lower" if metric in TO_THE_LOSS else FIGURES[metric].better


def _common_loss(groups: Sequence[Group]) -> float | None:
    """Return the lowest validation loss that all rows with losses surely reached; None for fewer than two such rows."""
    found = [group.records for group in groups if all(map(_has_losses, group.records))]
    return lowest_common_loss([record for records in found for record in records], end=1) if len(found) > 1 else None


def _has_losses(record: RunRecord) -> bool:
    return not record.speed_only_reason and any(point.loss is not None for point in record.quality_curve)
