"""`report.md`: the table, and all that must be said beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.environment import environments
from efficientbench.metrics.report.failures import HEADER as FAILURES_HEADER
from efficientbench.metrics.report.failures import FailedRun
from efficientbench.metrics.report.headline import ABSENT, SHOWN, absences, cell, notes, unique_names
from efficientbench.metrics.report.noise import noise_floors
from efficientbench.metrics.report.paper import paper_tables, verdict
from efficientbench.metrics.report.quality import HEADER as COST_HEADER
from efficientbench.metrics.report.quality import cost_tables
from efficientbench.metrics.report.text import escape, markdown_table


def write_markdown(
    records: Sequence[RunRecord], damaged: Sequence[str], path: Path, failures: Sequence[FailedRun] = ()
) -> None:
    """Write the report as Markdown. Raises MetricsError where it cannot be written."""
    write_whole(path, markdown(records, damaged, failures))


def markdown(records: Sequence[RunRecord], damaged: Sequence[str], failures: Sequence[FailedRun] = ()) -> str:
    """The whole text."""
    header = ["run", *(column.title for column in SHOWN)]
    named = zip(unique_names(records), records, strict=True)
    rows = [[shown, *(cell(column, record) for column in SHOWN)] for shown, record in named]
    parts = ["# EfficientBench report", markdown_table(header, rows)]
    parts += [escape(note) for note in (*notes(records), *map(str, noise_floors(records)))]
    if failures:
        failed = [failure.row for failure in failures]
        parts += [
            "## Runs that did not come to their end",
            markdown_table(FAILURES_HEADER, failed, left=len(failed[0])),
        ]
    for costs in cost_tables(records):
        parts += [f"## Cost, {escape(costs.title)}", markdown_table(COST_HEADER, costs.rows)]
        parts += [f"{ABSENT}: {escape(reason)}" for reason in costs.reasons]
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
