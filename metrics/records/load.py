"""Finds the records below a folder."""

from __future__ import annotations

from pathlib import Path

from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, read_record

LEFT_OUT = ("previous", "profile")
"""Folders beside a run's record: what it replaced, and a run that was slowed by being traced."""


def load_records(folder: Path) -> tuple[list[RunRecord], list[str]]:
    """All records below a folder, by run and start, and a message for each file that is none.

    Records that a later one replaced (below a folder `previous`) and those of traced runs (`profile`) are left out,
    unless that folder itself is given.

    Raises:
        MetricsError: there is no such folder, or it cannot be read.
    """
    try:
        if folder.is_file():
            raise MetricsError(f"{folder}: is a file; give the folder that runs were written to")
        if not folder.is_dir():
            raise MetricsError(f"{folder}: there is no such folder to report on")
    except OSError as error:
        raise MetricsError(f"{folder}: cannot be read ({error.strerror})") from None
    records, damaged = [], []
    for path in sorted(folder.rglob(RECORD_NAME)):
        if set(LEFT_OUT) & set(path.relative_to(folder).parts):
            continue
        try:
            records.append(read_record(path))
        except MetricsError as error:
            damaged.append(str(error))
    return sorted(records, key=lambda record: (record.run, record.started_at)), damaged
