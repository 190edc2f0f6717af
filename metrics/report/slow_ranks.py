"""Devices that their own hardware slowed."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.device_use import HARDWARE, HEAT
from efficientbench.metrics.records.record import RunRecord

LEAST_SHARE = 0.05
"""Of the readings; the power limit is no such cause, as a GPU that works hard is always at it."""
MOST_NAMED = 8


def slowed(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run with a device that heat or a fault slowed."""
    sentences = []
    for record in records:
        told = [
            f"rank {each.rank} by {cause} in {share:.0%} of the readings"
            for each in record.device_conditions
            for cause, share in each.slowed_by.items()
            if cause in (*HEAT, HARDWARE) and share >= LEAST_SHARE
        ]
        if told:
            more = f", and {len(told) - MOST_NAMED:,} more" if len(told) > MOST_NAMED else ""
            sentences.append(f"{record.run} was slowed: {'; '.join(told[:MOST_NAMED])}{more}.")
    return sentences
