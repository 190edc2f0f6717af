"""Ranks whose devices heat or a fault slowed, and ranks that keep the others waiting."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from efficientbench.metrics.formulas.device_use import HARDWARE, HEAT
from efficientbench.metrics.records.record import RunRecord

LEAST_SHARE = 0.05
"""Least share to report: of readings with a cause of slowing, and of a step's time that the others wait longer than the
slowest rank. The power limit is no such cause, since a GPU that works hard is always at it."""
MOST_NAMED = 8


def slowed(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run with a device that heat or a fault slowed."""
    sentences = []
    for record in records:
        causes = [
            f"rank {each.rank} by {cause} in {share:.0%} of the readings"
            for each in record.device_conditions
            for cause, share in each.slowed_by.items()
            if cause in (*HEAT, HARDWARE) and share >= LEAST_SHARE
        ]
        if causes:
            more = f", and {len(causes) - MOST_NAMED:,} more" if len(causes) > MOST_NAMED else ""
            sentences.append(f"{record.run} was slowed: {'; '.join(causes[:MOST_NAMED])}{more}.")
    return sentences


def straggling(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run of one pipeline stage with a rank that waits far less than the others do.

    Several pipeline stages have unequal work, so their waits say nothing.
    """
    sentences = []
    for record in records:
        waits = sorted(record.rank_waits, key=lambda each: each.communication_s)
        if len(waits) < 2 or record.pp > 1 or not record.al_s:
            continue
        own, others = waits[0].communication_s, fmean(each.communication_s for each in waits[1:])
        if others - own >= LEAST_SHARE * record.al_s:
            shares = f"{own / record.al_s:.0%} of a step for the others, and these {others / record.al_s:.0%}"
            sentences.append(f"{record.run}: rank {waits[0].rank} waited {shares}: it is the slowest.")
    return sentences
