"""`report.csv`: one row a run, stable columns, full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.columns import UNAVAILABLE, names, row

ABSENT = "n/a"


def write_csv(records: Iterable[RunRecord], path: Path) -> None:
    """Write one row a run, in the columns of `efficientbench.metrics.report.columns`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names(), lineterminator="\n")
    writer.writeheader()
    for record in records:
        values, reasons = row(record)
        cells = {name: _cell(value) for name, value in values.items()}
        cells[UNAVAILABLE] = " | ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
        writer.writerow(cells)
    write_whole(path, text.getvalue())


def _cell(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
