"""Which runs and which figures a report or its plots show, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.figures import Subject


@dataclass(frozen=True)
class Choice:
    """What was asked for; by default all."""

    only: Sequence[str] = ()
    """Names of runs, variants or sizes; empty: all."""
    columns: Sequence[str] = ()
    """Figures, by their names in the record; empty: those that a table has by itself."""

    def check(self, found: Iterable[Subject], columns: Iterable[str]) -> None:
        """Raise MetricsError if a name is that of no run that was found, or of none of the columns."""
        _check("--only", self.only, sorted({name for each in found for name in _names(each)}))
        _check("--columns", self.columns, list(columns))

    def holds(self, subject: Subject) -> bool:
        """Return whether a run is shown."""
        return not self.only or not _names(subject).isdisjoint(self.only)

    def holds_folder(self, folder: Path, shown: Iterable[Path]) -> bool:
        """Return whether a folder is shown: it is one of the shown runs' or lies below one."""
        return not self.only or not {folder, *folder.parents}.isdisjoint(shown)

    def told(self, shown: int, all_runs: int) -> str:
        """Return a sentence on the runs that are shown; empty where all are."""
        if not self.only:
            return ""
        return f"Chosen by --only {','.join(self.only)}: {shown:,} of {all_runs:,} runs; the others count nowhere here."


def _names(subject: Subject) -> set[str]:
    return {subject.run, subject.variant, subject.size}


def _check(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise MetricsError if a name is none of those that are known."""
    if unknown := next((name for name in given if name not in known), None):
        near = get_close_matches(unknown, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise MetricsError(f"{option}: {unknown[:80]!r} is none of {', '.join(known)}{hint}")
