"""Builds all reports of a folder of runs, from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from efficientbench.metrics.analysis.repeats import combine_repeats
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, load_records
from efficientbench.metrics.report.columns import write_csv
from efficientbench.metrics.report.failures import FailedRun, load_failures
from efficientbench.metrics.report.hparams import HPARAMS_FOLDER, write_hparams
from efficientbench.metrics.report.html.page import write_html
from efficientbench.metrics.report.markdown import write_markdown
from efficientbench.metrics.report.paper import paper_markdown


@dataclass(frozen=True)
class Report:
    """The records that were read, and the files that were written."""

    records: list[RunRecord]
    """One for each run, and for each group of repeats."""
    failures: list[FailedRun]
    damaged: list[str]
    """A message for each file that is no record."""
    written: list[Path]


def build_report(folder: Path, paper: bool = False) -> Report:
    """Write report.html, report.md, report.csv and TensorBoard's HParams into the folder; with `paper`, paper.md too.

    Raises:
        MetricsError: no such folder, no record below it that can be read, or a file that cannot be written.
    """
    records, damaged = load_records(folder)
    if not records:
        raise MetricsError(_nothing(folder, damaged))
    html, markdown, csv = folder / "report.html", folder / "report.md", folder / "report.csv"
    rows, failures = combine_repeats(records), load_failures(folder)
    write_html(rows, damaged, html, failures)
    write_markdown(rows, damaged, markdown, failures)
    write_csv(rows, csv)
    write_hparams(records, folder / HPARAMS_FOLDER)
    written = [html, markdown, folder / HPARAMS_FOLDER, csv]
    if paper:
        write_whole(folder / "paper.md", paper_markdown(rows))
        written.insert(0, folder / "paper.md")
    return Report(rows, failures, damaged, written)


def _nothing(folder: Path, damaged: Sequence[str]) -> str:
    if damaged:
        return f"{folder}: none of the {len(damaged)} records below it can be read; the first: {damaged[0]}"
    return f"{folder}: no run's record ({RECORD_NAME}) lies below it: give the folder that runs were written to"
