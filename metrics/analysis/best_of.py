"""Choose the best of a grid of training keys, such as learning rates, for each side of a declared comparison.

A rate is chosen by the losses on every second sequence of the validation text, and judged on the others, so that it is
not chosen for luck with the text. The choice among several runs is corrected for in the p values (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.judging import training_of
from efficientbench.metrics.analysis.repeats import Group, mean_sequence_losses, model_identity
from efficientbench.metrics.records.record import RunRecord

LEAST_SEQUENCES = 4


@dataclass(frozen=True)
class Best:
    """The best row of a grid."""

    group: Group
    """Its runs, whose losses are those of the sequences that did not choose it."""
    chosen: str
    """Its values of the grid's keys, in words."""
    tried: tuple[str, ...]
    """Values of those keys of all rows of the grid, in words."""

    def __str__(self) -> str:
        return f"{self.chosen} (tried: {'; '.join(self.tried)})"


def best_of(group: Group, beside: Sequence[Group], keys: Collection[str]) -> Best:
    """Return the best of a row and of those beside it that differ from it in these keys alone.

    Raises:
        MetricsError: a key does not change what is learned, no other row is of the grid, or its losses cannot be
            compared sequence by sequence.
    """
    known = training_of(group.first)
    if unknown := [key for key in keys if key not in known]:
        raise MetricsError(f"{unknown[0]} is no key of {group.name} that changes what is learned: {', '.join(known)}")
    own = model_identity(group.first, keys)
    rows = [group, *(each for each in beside if model_identity(each.first, keys) == own)]
    if len(rows) == 1:
        raise MetricsError(f"{group.name}: no run beside it differs in {', '.join(keys)} alone")
    runs = [run for row in rows for run in row.records]
    short = next((f"{run.run}: {run.speed_only_reason}" for run in runs if run.speed_only_reason), None)
    if short or len(mean_sequence_losses(runs)) < LEAST_SEQUENCES:
        raise MetricsError(short or f"{group.name}: its grid has no losses of {LEAST_SEQUENCES} sequences of one text")
    best = min(rows, key=lambda row: fmean(mean_sequence_losses(row.records)[::2]))
    told = {id(row): ", ".join(f"{key} {training_of(row.first)[key]}" for key in keys) for row in rows}
    return Best(Group(tuple(map(_on_the_others, best.records))), told[id(best)], tuple(told.values()))


def _on_the_others(record: RunRecord) -> RunRecord:
    """Return a record with the losses of the sequences that chose nothing, each of one weight."""
    losses = record.validation_sequence_losses[1::2]
    loss, whole = fmean(losses), record.validation_loss
    bits = record.bits_per_byte * loss / whole if record.bits_per_byte is not None and whole else None
    absent = {} if bits is not None else {"bits_per_byte": record.unavailable.get("bits_per_byte", "no whole loss")}
    figures = {"validation_loss": loss, "bits_per_byte": bits, "validation_sequence_losses": losses}
    return record.model_copy(update={**figures, "quality_curve": [], "unavailable": record.unavailable | absent})
