"""Reads and prints why runs failed or did not finish, from `failure.json` in their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import parse_json, plain_text, plain_texts, read_whole
from efficientbench.basics.grouped import grouped
from efficientbench.metrics.records.record import FAILURE_NAME
from efficientbench.metrics.records.stored import current_files, read_each
from efficientbench.metrics.report.table import ABSENT, Table, print_table

TITLE = "Runs that did not come to their end"
_MOST_REASON = 600
"""Most characters of a reason in a table; the file has the full reason."""


@dataclass(frozen=True)
class FailedRun:
    """Why one run ended early, or could not start."""

    folder: str
    """The run's folder, relative to the reported folder."""
    kind: str
    """Kind of failure, such as out_of_memory, non_finite, time_limit, mistake, crash."""
    step: int | None
    reason: str

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Return the failure as a row of text."""
        reason = " ".join(self.reason.split())
        short = reason if len(reason) <= _MOST_REASON else f"{reason[: _MOST_REASON - 1]}…"
        return self.folder, self.kind.replace("_", " "), ABSENT if self.step is None else f"{self.step:,}", short


def load_failures(folder: Path) -> tuple[list[FailedRun], list[str]]:
    """Return the failures below a folder, by run, and a message for each file that cannot be read as one.

    Replaced attempts and traced runs are skipped.
    """
    return read_each(current_files(folder, FAILURE_NAME), lambda path: _read(path, folder))


def _read(path: Path, folder: Path) -> FailedRun:
    try:
        content = plain_texts(parse_json(read_whole(path)))
        step, rank = content.get("step"), content.get("rank")
        reason = f"rank {rank}: {content['reason']}" if rank is not None else str(content["reason"])
        kind = str(content["kind"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        no_failure = f"it is no failure, {type(error).__name__}: {error}"
        problem = error.strerror if isinstance(error, OSError) else no_failure
        raise MetricsError(f"{path}: cannot be read ({problem})") from None
    run = plain_text(str(path.parent.relative_to(folder)))
    return FailedRun(run, kind, step if type(step) is int else None, reason)


def failures_table(failures: Sequence[FailedRun]) -> Table:
    """Return a row for each failure, with all runs that ended so."""
    runs = grouped((failure.row[1:], failure.row[0]) for failure in failures)
    return Table(("run", "kind", "step", "reason"), [(", ".join(runs[same]), *same) for same in runs], (0, 1, 3))


def print_failures(failures: Sequence[FailedRun], console: Console) -> None:
    """Print a row for each failure; nothing where none failed."""
    if failures:
        console.print(Text(TITLE, style="italic"))
        print_table(failures_table(failures), console)
        console.print()
