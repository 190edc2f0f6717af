"""What a reader must know of a table of runs: steps that took much longer, and losses that differ by noise alone."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.analysis.compare import ratio_of
from efficientbench.metrics.analysis.conditions import group
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.records.record import RunRecord

MOST_NAMED = 3
"""Slow steps that a sentence names."""


def slow_steps(records: Sequence[RunRecord]) -> list[str]:
    """For each run with outliers how many, and the slowest with their causes where these are known."""
    found = []
    for record in records:
        slowest = sorted(record.outliers, key=lambda outlier: -outlier.step_time_s)[:MOST_NAMED]
        if not slowest:
            continue
        named = ", ".join(
            f"step {outlier.step} ({outlier.times_median:.1f} times the median; {outlier.cause or 'cause not known'})"
            for outlier in slowest
        )
        found.append(f"{record.run}: {record.outlier_steps} steps took much longer than the others: {named}.")
    return found


def resumed(records: Sequence[RunRecord]) -> list[str]:
    """Which runs went on from a checkpoint, since their figures are of a part of the run."""
    return [
        f"{record.run} was resumed after step {', '.join(map(str, record.resumed_after_steps))}: measured are the "
        "steps of its last attempt, after a warm-up of its own."
        for record in records
        if record.resumed_after_steps
    ]


def speed_only(records: Sequence[RunRecord]) -> list[str]:
    """For each size and set of comparable runs, those whose losses noise alone sets apart from the lowest.

    Noise is that of the repeats, where a record stands for several; else the validation loss's own standard error.
    """
    sets: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        if record.validation_loss and record.validation_loss_se is not None:
            sets.setdefault((record.size, group(record)), []).append(record)
    found = []
    for members in sets.values():
        best = min(members, key=lambda record: record.validation_loss or 0.0)
        alike = [record.run for record in members if record is best or _is_noise(best, record)]
        if len(alike) > 1:
            repeated = all(record.repeats > 1 for record in members if record.run in alike)
            noise = "the noise between seeds" if repeated else "the validation loss's own standard error"
            found.append(f"Between {', '.join(alike)} the comparison is one of speed only: losses differ by {noise}.")
    return found


def _is_noise(best: RunRecord, other: RunRecord) -> bool:
    return ratio_of("validation_loss", Group((best,)), Group((other,))).measurable is False
