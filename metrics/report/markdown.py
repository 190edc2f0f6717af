"""`report.md`: the table, and all that must be said beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metrics.files import write_whole
from metrics.record import RunRecord
from metrics.report.environment import environments
from metrics.report.paper import paper_tables, verdict
from metrics.report.shown import SHOWN, absences, cell, name, notes
from metrics.report.text import escape, markdown_table


def write_markdown(records: Sequence[RunRecord], damaged: Sequence[str], path: Path) -> None:
    """Write the report as Markdown. Raises MetricsError where it cannot be written."""
    write_whole(path, markdown(records, damaged))


def markdown(records: Sequence[RunRecord], damaged: Sequence[str]) -> str:
    """The whole text."""
    header = ["run", *(column.title for column in SHOWN)]
    rows = [[name(record), *(cell(column, record) for column in SHOWN)] for record in records]
    parts = ["# EfficientBench report", markdown_table(header, rows)]
    parts += [escape(note) for note in notes(records)]
    missing = [f"- {escape(str(absence))}" for absence in absences(records)]
    if missing:
        parts += ["## What is n/a, and why", "\n".join(missing)]
    energy = [sentence for table in paper_tables(records) if table.ranked for sentence in verdict(table)]
    if energy:
        parts += ["## Energy: J/token against AEC", "\n".join(f"- {escape(line)}" for line in dict.fromkeys(energy))]
    parts.append("## Where the runs happened")
    for found in environments(records):
        facts = "\n".join(f"- {escape(key)}: {escape(value)}" for key, value in found.facts.items())
        parts += [f"**{escape(', '.join(found.runs))}**", facts]
    if damaged:
        parts += ["## Records that could not be read", "\n".join(f"- {escape(line)}" for line in damaged)]
    return "\n\n".join(parts) + "\n"
