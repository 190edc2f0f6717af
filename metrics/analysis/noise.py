"""The noise that a comparison rests on: between runs of identical models, and from the choice of the text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from efficientbench.metrics.analysis.conditions import Difference, comparison_key, differences
from efficientbench.metrics.analysis.repeats import Group, mean_sequence_losses, model_identity, seeds_of
from efficientbench.metrics.formulas.definitions import standard_deviation
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, Estimate
from efficientbench.metrics.records.record import RunRecord

DIFFERING = 0.55
"""How far the degrees of freedom of a spread that rows share follow the differences between the rows' own."""


_ORDER = ("data", "sequence", "global_batch", "tokens")
"""Conditions on which the order of the data depends."""


class IdenticalRuns:
    """The rows of a report by model and conditions, to look up runs of identical models, which show the noise.

    `identical_runs` answers for one pair. A report asks for thousands of pairs, so this class groups the rows once.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = tuple(groups)
        """The rows, held because their ids are the keys below."""
        self._models = {id(group): model_identity(group.first) for group in groups}
        self._keys = {id(group): comparison_key(group.first) for group in groups}
        self._samples = {self._keys[id(group)]: group.first for group in groups}
        self._agreeing: dict[tuple[str, str], bool] = {}
        runs: Counter[str] = Counter()
        for group in groups:
            runs[self._models[id(group)]] += len(group.records)
        self._sets: dict[tuple[str, str], list[Group]] = {}
        """Rows of models with enough runs to estimate their noise, by model and conditions."""
        for group in groups:
            model = self._models[id(group)]
            if runs[model] >= MIN_REPEATS:
                self._sets.setdefault((model, self._keys[id(group)]), []).append(group)

    def differences(self, first: Group, second: Group) -> tuple[Difference, ...]:
        """Return the conditions in which two rows differ."""
        if self._agree(self._keys[id(first)], self._keys[id(second)]):
            return ()
        return tuple(differences(first.first, second.first))

    def beside(self, first: Group, second: Group) -> list[list[RunRecord]]:
        """Return the sets that `identical_runs` returns for two rows, without those of too few runs."""
        compared = [id(first), id(second)]
        keys = [self._keys[each] for each in compared]
        alike = self._models[compared[0]] == self._models[compared[1]]
        sets: dict[str, list[Group]] = {}
        for (model, key), groups in self._sets.items():
            if all(self._agree(own, key) for own in keys):
                taken = [group for group in groups if not (alike and id(group) in compared)]
                sets.setdefault(model, []).extend(taken)
        found = [groups for groups in sets.values() if len(groups) > 1 or (groups and id(groups[0]) not in compared)]
        return [[record for group in groups for record in group.records] for groups in found]

    def _agree(self, one: str, other: str) -> bool:
        """Return whether runs of two keys differ in no condition."""
        if one == other:
            return True
        found = self._agreeing.get((one, other))
        if found is None:
            found = not differences(self._samples[one], self._samples[other])
            self._agreeing[one, other] = self._agreeing[other, one] = found
        return found


def identical_runs(first: Group, second: Group, neighbours: Sequence[Group]) -> list[list[RunRecord]]:
    """Return sets of runs of one model, whatever their names and seeds, under the conditions of both compared groups.

    A run counts once, even if links and copies lead to it again. A set that is one compared group alone is skipped: it
    shows no more than that side's own noise. Where both groups are of one model, neither is in a set, since a set would
    count their difference as noise.
    """
    compared = [{_measurement(record) for record in group.records} for group in (first, second)]
    alike = model_identity(first.first) == model_identity(second.first)
    sets: dict[str, dict[tuple[object, ...], RunRecord]] = {}
    for group in (first, second, *neighbours):
        if not differences(first.first, group.first) and not differences(second.first, group.first):
            found = sets.setdefault(model_identity(group.first), {})
            for record in group.records:
                if not alike or not any(_measurement(record) in side for side in compared):
                    found.setdefault(_measurement(record), record)
    return [list(found.values()) for found in sets.values() if found and found.keys() not in compared]


def _measurement(record: RunRecord) -> tuple[object, ...]:
    """Return what identifies a run: the same in all copies of its record, and different for any two runs."""
    return record.run, record.seed, record.started_at


def aa_floor(sets: Sequence[Sequence[RunRecord]], read: Callable[[RunRecord], float | None]) -> Estimate | None:
    """Return the variance of the logarithm of a figure between runs of identical models, pooled over the sets.

    Return None where no set has MIN_REPEATS runs with that figure above 0.
    """
    return _pooled(_spreads(sets, read))


def pooled_spread(rows: Sequence[Group], read: Callable[[RunRecord], float | None]) -> Estimate | None:
    """Return the variance of `aa_floor` within a line's rows, whose spreads may differ; None as there.

    Satterthwaite's degrees see a difference between spreads of three runs where there is none, and those of equal
    spreads see none where there is one. DIFFERING weighs them, so that a report on four rows claims a difference of
    identical models in 2.5 to 6.5 % of sets, be their spreads equal or one 4 times the others'
    (`tests/benchmarks/claim_rates.py`).
    """
    spreads = _spreads([row.records for row in rows], read)
    floor = _pooled(spreads)
    if floor is None or not floor.variance:
        return floor
    squares = math.fsum(each.variance**2 * each.degrees for each in spreads)
    differing = (floor.variance * floor.degrees) ** 2 / squares
    return Estimate(floor.variance, DIFFERING * differing + (1 - DIFFERING) * floor.degrees)


def _spreads(sets: Sequence[Sequence[RunRecord]], read: Callable[[RunRecord], float | None]) -> list[Estimate]:
    """Return the variance of each set that shows one."""
    found = []
    for records in sets:
        if len(records) < MIN_REPEATS:  # first, since a report asks this of all its rows for each pair of them
            continue
        values = [value for record in records if (value := read(record) or 0) > 0]
        logs = [math.log(value) for value in values]
        # A spread of exactly 0 is no noise, but of counts, such as bytes.
        if len(logs) >= MIN_REPEATS and (len(set(values)) > 1 or isinstance(values[0], int)):
            found.append(Estimate((standard_deviation(logs) or 0.0) ** 2, len(logs) - 1))
    return found


def _pooled(spreads: Sequence[Estimate]) -> Estimate | None:
    degrees = math.fsum(each.degrees for each in spreads)
    return Estimate(math.fsum(each.variance * each.degrees for each in spreads) / degrees, degrees) if spreads else None


def seed_noise(first: Group, second: Group, read: Callable[[RunRecord], float | None]) -> Estimate | None:
    """Return the variance of the logarithm of a ratio of two rows' means, by the differences at each seed.

    Runs of one seed read the same data in the same order, and what that does to both is no noise of their difference (a
    paired t test). None unless the rows have the same seeds, MIN_REPEATS or more, and the same order.
    """
    sides = [{seeds_of(run): read(run) or 0.0 for run in row.records} for row in (first, second)]
    if sides[0].keys() != sides[1].keys() or len(sides[0]) < MIN_REPEATS:
        return None
    if any(each.condition in _ORDER for each in differences(first.first, second.first)):
        return None
    changes = [math.log(sides[1][seed] / sides[0][seed]) for seed in sides[0]]
    deviation = standard_deviation(changes)
    return Estimate(deviation**2 / len(changes), len(changes) - 1) if deviation else None


def text_noise(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> Estimate | None:
    """Return the variance that the choice of the text gives to the logarithm of a ratio of losses.

    All runs read the same sequences, and a hard sequence is hard for both sides. So the variance is that of the sides'
    difference over the sequences, taken as independent (a paired t test). None unless all runs read the same text.
    """
    if not mean_sequence_losses([*first, *second]):
        return None
    sides = [mean_sequence_losses(side) for side in (first, second)]
    means = [math.fsum(losses) / len(losses) for losses in sides]
    # The first-order change of log(mean / mean) that each sequence makes.
    changes = [other / means[1] - one / means[0] for one, other in zip(*sides, strict=True)]
    deviation = standard_deviation(changes)
    return None if deviation is None else Estimate(deviation**2 / len(changes), len(changes) - 1)
