"""The table of the runs' wall time, by what it was spent on."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.report.headline import unique_names
from efficientbench.metrics.report.table import Table

PARTS = {
    "productive_s": "goodput",
    "start_s": "start",
    "first_steps_s": "first steps",
    "data_wait_s": "data",
    "evaluation_s": "evaluation",
    "checkpoints_s": "checkpoints",
    "restarts_s": "restarts",
    "rest_s": "rest",
}
"""Figure of a part → its column."""


def wall_time_table(records: Sequence[RunRecord]) -> Table | None:
    """Return the wall time of each run that knows it, and the shares of its parts; None where none does."""
    rows = [
        (name, f"{record.wall_s:,.0f}", *(f"{getattr(record, part) / record.wall_s:.1%}" for part in PARTS))
        for name, record in zip(unique_names(records), records, strict=True)
        if record.wall_s and None not in [getattr(record, part) for part in PARTS]
    ]
    if not rows:
        return None
    notes = tuple(f"{title}: {FIGURES[part].description}." for part, title in PARTS.items())
    return Table(("run", "wall time, s", *PARTS.values()), rows, title="Where the wall time went", notes=notes)
