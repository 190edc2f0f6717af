"""Rows of a report that are alternatives to each other: which is best in a figure, and which only seems to be.

The best row is chosen after the fact, so that every pair of rows and every figure counts as a comparison (Bonferroni):
where all models are alike, a report claims no difference at all in 95 % of sets. That is stricter than `compare`, which
is told beforehand which two rows to compare.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from efficientbench.metrics.analysis.compare import ratio_of, why_not
from efficientbench.metrics.analysis.conditions import Difference, differences
from efficientbench.metrics.analysis.noise import aa_floor, runs_of_one_model
from efficientbench.metrics.analysis.repeats import Group, model_identity
from efficientbench.metrics.ratio import MIN_REPEATS, Ratio
from efficientbench.metrics.records.record import FIGURES, RunRecord

QUESTIONS = ("energy_j_per_token", "tokens_per_s", "amu_gb", "validation_loss")
"""Figures by which a report says which row is best."""


@dataclass(frozen=True)
class Pair:
    """Two rows side by side."""

    differences: tuple[Difference, ...]
    """Conditions that they do not share: then they are not compared."""
    ratios: dict[str, Ratio]
    """Figure → second over first, its p value corrected for all pairs and figures of the set."""
    unavailable: dict[str, str]
    """Figure → why it has no ratio."""


@dataclass(frozen=True)
class Standing:
    """How the rows stand in one figure. A row is named by its place in the set."""

    metric: str
    best: int | None
    """The row with the best figure, whether or not by more than noise; None where no row has the figure."""
    worse: dict[int, Ratio] = field(default_factory=dict)
    """Rows that are worse by more than noise → best over row."""
    level: tuple[int, ...] = ()
    """Rows that differ from the best by no more than noise."""
    open: tuple[int, ...] = ()
    """Rows without a verdict: too few runs tell the noise."""
    apart: dict[int, tuple[Difference, ...]] = field(default_factory=dict)
    """Rows that are not compared with the best → the conditions in which they differ from it."""
    unavailable: dict[int, str] = field(default_factory=dict)
    """Rows without the figure → why."""


class Rivals:
    """A set of rows that may be compared, each a run or its repeats."""

    def __init__(self, groups: Sequence[Group], floors: Sequence[Group] = ()) -> None:
        """Take the set's rows, and the rows of `floor_groups`, among which runs of identical models are."""
        self.groups = tuple(groups)
        self._floors = floors
        self._pairs: dict[tuple[int, int], Pair] = {}
        self._sharing: dict[int, list[Group]] = {}
        asked = sum(any(mean_of(group, metric) for group in self.groups) for metric in QUESTIONS)
        self.comparisons = max(asked, 1) * max(len(self.groups) * (len(self.groups) - 1) // 2, 1)
        """Pairs of rows, times the figures that any of them has."""

    def pair(self, first: int, second: int) -> Pair:
        """Return the comparison of two rows, second over first."""
        found = self._pairs.get((first, second))
        if found is None:
            found = self._pairs[first, second] = self._compare(first, second)
        return found

    def _compare(self, one: int, other: int) -> Pair:
        first, second = self.groups[one], self.groups[other]
        differ = tuple(differences(first.first, second.first))
        if differ:
            return Pair(differ, {}, {})
        both = [*first.records, *second.records]
        unavailable = {metric: why for metric in QUESTIONS if (why := why_not(metric, both)) is not None}
        alike = self._alike(one, other) if len(unavailable) < len(QUESTIONS) else []
        ratios: dict[str, Ratio] = {}
        for metric in QUESTIONS:
            if metric in unavailable:
                continue
            ratio = ratio_of(metric, first, second, aa_floor(alike, attrgetter(metric)))
            p_value = None if ratio.p_value is None else min(1.0, ratio.p_value * self.comparisons)
            ratios[metric] = replace(ratio, p_value=p_value)
        return Pair(differ, ratios, unavailable)

    def _alike(self, one: int, other: int) -> list[list[RunRecord]]:
        """Return the sets of runs of one model that share the conditions of both rows."""
        sharing = [each for each in self._share(one) if any(each is same for same in self._share(other))]
        first, second = self.groups[one], self.groups[other]
        beside = [each for each in sharing if each is not first and each is not second]
        return runs_of_one_model(first, second, [first, second, *beside]) if beside else []

    def _share(self, place: int) -> list[Group]:
        """Return the rows with identical models that share a row's conditions."""
        found = self._sharing.get(place)
        if found is None:
            own = self.groups[place].first
            found = self._sharing[place] = [each for each in self._floors if not differences(own, each.first)]
        return found

    def standing(self, metric: str) -> Standing:
        """Return how the rows stand in a figure."""
        means = {place: mean_of(group, metric) for place, group in enumerate(self.groups)}
        values = {place: mean for place, mean in means.items() if mean is not None}
        reasons = {place: why_not(metric, self.groups[place].records) or "" for place in means if place not in values}
        if not values:
            return Standing(metric, None, unavailable=reasons)
        sign = -1 if FIGURES[metric].better == "higher" else 1
        best = min(values, key=lambda place: sign * values[place])
        worse: dict[int, Ratio] = {}
        apart: dict[int, tuple[Difference, ...]] = {}
        level, unsure = [], []
        for place in values:
            if place == best:
                continue
            pair = self.pair(place, best)
            if pair.differences:
                apart[place] = pair.differences
            elif pair.ratios[metric].measurable is None:
                unsure.append(place)
            elif pair.ratios[metric].measurable:
                worse[place] = pair.ratios[metric]
            else:
                level.append(place)
        return Standing(metric, best, worse, tuple(level), tuple(unsure), apart, reasons)


def mean_of(group: Group, metric: str) -> float | None:
    """Return the geometric mean of a figure over the repeats, as a ratio has it.

    None where a repeat lacks it, or where it is a loss that takes no part in comparisons.
    """
    if why_not(metric, group.records) is not None:
        return None
    values = group.values(metric)
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def floor_groups(groups: Sequence[Group]) -> list[Group]:
    """Return the rows of models that ran often enough, under whatever names, for an A/A floor."""
    identities = [model_identity(group.first) for group in groups]
    runs: Counter[str] = Counter()
    for identity, group in zip(identities, groups, strict=True):
        runs[identity] += len(group.records)
    return [group for identity, group in zip(identities, groups, strict=True) if runs[identity] >= MIN_REPEATS]
