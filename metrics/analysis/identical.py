"""Runs of identical models in a report, which show the noise between runs: looked up by model and conditions.

`noise.identical_runs` answers for one pair. A report asks for thousands, so that what belongs together is found once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from efficientbench.metrics.analysis.conditions import Difference, comparison_key, differences
from efficientbench.metrics.analysis.repeats import Group, model_identity
from efficientbench.metrics.ratio import MIN_REPEATS
from efficientbench.metrics.records.record import RunRecord


class IdenticalRuns:
    """The rows of a report by their models and conditions."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = tuple(groups)
        """Kept, since their identities are the keys below."""
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
        """Return the same sets for two rows as `noise.identical_runs`, but for those of too few runs."""
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
