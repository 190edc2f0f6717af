"""Writes `report.md`: the table of results, and all that a reader must know beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.comparison import noise_floors
from efficientbench.metrics.report.environments import environments
from efficientbench.metrics.report.failures import FailedRun, failures_table
from efficientbench.metrics.report.headline import absences, notes, results_table
from efficientbench.metrics.report.loss_costs import cost_tables
from efficientbench.metrics.report.paper import NO_ENERGY, paper_tables
from efficientbench.metrics.report.table import escape, markdown_table


def write_markdown(
    records: Sequence[RunRecord], damaged: Sequence[str], path: Path, failures: Sequence[FailedRun] = ()
) -> None:
    """Write the report as Markdown. Raises MetricsError where it cannot be written."""
    write_whole(path, markdown(records, damaged, failures))


def markdown(records: Sequence[RunRecord], damaged: Sequence[str], failures: Sequence[FailedRun] = ()) -> str:
    """Return the whole text."""
    parts = ["# EfficientBench report", markdown_table(results_table(records))]
    parts += [escape(note) for note in (*notes(records), *map(str, noise_floors(records)))]
    if failures:
        table = failures_table(failures)
        parts += [f"## {table.title}", markdown_table(table)]
    for table in cost_tables(records):
        parts += [f"## Cost, {escape(table.title)}", markdown_table(table), *map(escape, table.notes)]
    missing = [f"- {escape(str(absence))}" for absence in absences(records)]
    if missing:
        parts += ["## What is n/a, and why", "\n".join(missing)]
    tables = paper_tables(records)
    energy = [sentence for table in tables for sentence in table.notes if sentence != NO_ENERGY]
    if energy:
        parts += ["## Energy: J/token against AEC", "\n".join(f"- {escape(line)}" for line in dict.fromkeys(energy))]
    parts.append("## Where the runs happened")
    for found in environments(records):
        facts = "\n".join(f"- {escape(key)}: {escape(value)}" for key, value in found.facts.items())
        parts += [f"**{escape(', '.join(found.runs))}**", facts]
    if damaged:
        parts += ["## Records that could not be read", "\n".join(f"- {escape(line)}" for line in damaged)]
    return "\n\n".join(parts) + "\n"
