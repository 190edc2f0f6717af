"""Reads the records of a folder of runs for programs: as objects, and as a table of pandas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import FIGURES, RunRecord

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Runs:
    """The runs below a folder; iterating yields their records."""

    records: tuple[RunRecord, ...]
    """By the runs' names and starts, each repeat on its own. A figure that is None has its reason in `unavailable`."""
    left_out: tuple[str, ...]
    """A message for each record that cannot be read, or cannot be true."""

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def frame(self) -> pandas.DataFrame:
        """Return a row for each record and a column for each figure, with the names and units of docs/columns.md.

        An absent figure is missing in its row. Raises MetricsError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise MetricsError("a DataFrame needs pandas: pip install pandas") from None
        rows = [{name: getattr(record, name) for name in FIGURES} for record in self.records]
        return pandas.DataFrame(rows, columns=list(FIGURES))


def load(folder: str | Path) -> Runs:
    """Return the runs whose records lie below a folder, whichever tool wrote them.

    Raises MetricsError: there is no such folder, or it cannot be read.
    """
    records, left_out = load_records(path_of(folder))
    return Runs(tuple(records), tuple(left_out))


def path_of(folder: str | Path) -> Path:
    """Return the path of a folder that a program names. Raises MetricsError: it is no path."""
    try:
        return Path(folder)
    except TypeError:
        raise MetricsError(f"{folder!r:.80} is no path: give the folder of runs, like 'output/mine'") from None
