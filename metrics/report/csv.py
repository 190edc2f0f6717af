"""`report.csv`: one row a run, stable columns, full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from metrics.files import write_whole
from metrics.record import RunRecord, columns

ABSENT = "n/a"


def write_csv(records: Iterable[RunRecord], path: Path) -> None:
    """Write one row a run.

    The columns are those of `metrics.record.columns`, then `unavailable`: for each n/a of the row its name and
    reason, as 'name: reason' joined by ' | '.
    """
    text = io.StringIO()
    names = list(columns())
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "unavailable"])
    for record in records:
        reasons = " | ".join(f"{name}: {reason}" for name, reason in sorted(record.unavailable.items()))
        writer.writerow([*(_cell(getattr(record, name)) for name in names), reasons])
    write_whole(path, text.getvalue())


def _cell(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
