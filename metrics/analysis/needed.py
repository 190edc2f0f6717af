"""What a number of repeats can tell, beforehand, by the spread of the repeats in records at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from efficientbench.metrics.analysis.noise import aa_floor
from efficientbench.metrics.analysis.repeats import group_repeats
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, MOST_REPEATS, POWER, repeats_to_tell, smallest_told
from efficientbench.metrics.records.record import RunRecord

TOLD = {"tokens_per_s": "tokens/s", "energy_j_per_token": "J/token", "validation_loss": "validation loss"}
SMALL = 1.02
"""A difference that people ask for: 2 %."""


def what_repeats_tell(records: Sequence[RunRecord], repeats: int, rows: int, where: str) -> list[str]:
    """Return a sentence for each device on the differences that repeats of rows can tell in POWER of cases.

    Args:
        records: records at hand, of which those of complete runs with MIN_REPEATS repeats show the spread.
        repeats: repeats of each row.
        rows: number of rows, every pair of which is compared.
        where: where the records are from, in words.
    """
    pairs = max(1, rows * (rows - 1) // 2)
    groups = group_repeats(record for record in records if record.status == "completed")
    lines = []
    for device in sorted({group.first.device_name for group in groups}):
        repeated = [group.records for group in groups if group.first.device_name == device]
        parts = []
        for metric, title in TOLD.items():
            floor = aa_floor(repeated, attrgetter(metric))
            if floor is None or not floor.variance:
                continue
            spread = math.sqrt(floor.variance)
            runs = repeats_to_tell(SMALL, spread, pairs)
            told = f"{smallest_told(spread, repeats, pairs) - 1:.1%}" if repeats >= MIN_REPEATS else "nothing"
            takes = f"{SMALL - 1:.0%} takes {f'above {MOST_REPEATS}' if runs is None else runs}"
            parts.append(f"{title} {told}, {takes} (spread {spread:.2%})")
        if parts:
            lines.append(f"{repeats} repeats tell on {device}, in {POWER:.0%} of cases: {'; '.join(parts)}")
    unknown = f"what {repeats} repeats tell is not known: {where} has no run with {MIN_REPEATS} repeats"
    return lines or [unknown]
