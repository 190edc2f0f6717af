"""The noise that a comparison rests on: between runs of identical models, and from the choice of the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from efficientbench.metrics.analysis.conditions import differences
from efficientbench.metrics.analysis.repeats import Group, mean_sequence_losses, model_identity
from efficientbench.metrics.definitions import standard_deviation
from efficientbench.metrics.ratio import MIN_REPEATS, Estimate
from efficientbench.metrics.records.record import RunRecord


def identical_runs(first: Group, second: Group, neighbours: Sequence[Group]) -> list[list[RunRecord]]:
    """Return sets of runs of one model, whatever their names and seeds, under the conditions of both compared groups.

    A run counts once, though links and copies lead to it again. A set that is one compared group alone is left out: its
    repeats are that side's own noise, and not more. Where both are one model, neither is in a set, which would count
    their difference as noise.
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
    """Return what no two runs have in common, and all copies of a record have."""
    return record.run, record.seed, record.started_at


def aa_floor(sets: Sequence[Sequence[RunRecord]], read: Callable[[RunRecord], float | None]) -> Estimate | None:
    """Return the variance of the logarithm of a figure between runs of identical models, pooled over the sets.

    None where no set has MIN_REPEATS runs with that figure above 0.
    """
    squares, degrees = 0.0, 0
    for records in sets:
        logs = [math.log(value) for record in records if (value := read(record) or 0) > 0]
        if len(logs) >= MIN_REPEATS:
            squares += (standard_deviation(logs) or 0.0) ** 2 * (len(logs) - 1)
            degrees += len(logs) - 1
    return Estimate(squares / degrees, degrees) if degrees else None


def text_noise(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> Estimate | None:
    """Return the variance of the logarithm of a ratio of losses that comes from the choice of the text.

    All runs read the same sequences, so that a hard one is hard for both sides: what counts is how their difference
    varies between sequences, taken as independent (a paired t-test). None unless all runs read the same text.
    """
    if not mean_sequence_losses([*first, *second]):
        return None
    sides = [mean_sequence_losses(side) for side in (first, second)]
    means = [math.fsum(losses) / len(losses) for losses in sides]
    # The first-order change of log(mean / mean) that each sequence makes.
    changes = [other / means[1] - one / means[0] for one, other in zip(*sides, strict=True)]
    deviation = standard_deviation(changes)
    return None if deviation is None else Estimate(deviation**2 / len(changes), len(changes) - 1)
