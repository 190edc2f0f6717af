"""Writes the report's plots as separate files, and the answers as LaTeX tables, for papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from markupsafe import Markup

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.rivals import QUESTIONS
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord
from efficientbench.metrics.report.headline import HEADLINE
from efficientbench.metrics.report.paper.latex import latex_tables
from efficientbench.metrics.report.paper.pdf import pdf_file
from efficientbench.metrics.report.paper.standalone import svg_file
from efficientbench.metrics.report.plots.difference_plots import difference_figures
from efficientbench.metrics.report.plots.loss_plots import cost_figures
from efficientbench.metrics.report.plots.scaling_plots import scaling_figures
from efficientbench.metrics.report.plots.svg import MOST_RUNS, numbered
from efficientbench.metrics.report.suites import Rows, make_rows

FOLDER = "plots"
TABLES = "tables.tex"
WRITERS: dict[str, Callable[[Markup], str]] = {"svg": svg_file, "pdf": pdf_file}
"""File extension → what turns a plot into the file's text."""


def write_plots(
    folder: Path, form: str, only: Sequence[str] = (), columns: Sequence[str] = ()
) -> tuple[list[Path], list[str]]:
    """Write the plots of a folder of runs, and the LaTeX tables, into `plots/` below it.

    Args:
        folder: the folder of runs.
        form: a key of WRITERS.
        only: names of runs, variants or sizes to show; empty: all.
        columns: figures of the tables, by their names in the record; empty: those by which a report says what is best.

    Returns:
        The written files, and a message for each record that cannot be read.

    Raises:
        MetricsError: no record below the folder can be read, no run was completed, no run or column has such a name, or
            a file cannot be written.
    """
    records, damaged = load_records(folder)
    known = {name for record in records for name in _names(record)}
    _check("--only", only, sorted(known))
    _check("--columns", columns, list(HEADLINE))
    rows = make_rows([record for record in records if not only or not _names(record).isdisjoint(only)])
    if not rows.suites:
        raise MetricsError(f"{folder}: no completed run's record ({RECORD_NAME}) lies below it to plot")
    target = folder / FOLDER
    write_whole(target / TABLES, latex_tables(rows.suites, columns or QUESTIONS))
    written = [target / TABLES]
    for name, plot in _plots(rows):
        path = target / f"{name}.{form}"
        write_whole(path, WRITERS[form](plot))
        written.append(path)
    return written, damaged


def _names(record: RunRecord) -> set[str]:
    return {record.run, record.variant, record.size}


def _check(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise MetricsError if a name is none of those that are known."""
    if unknown := next((name for name in given if name not in known), None):
        near = get_close_matches(unknown, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise MetricsError(f"{option}: {unknown[:80]!r} is none of {', '.join(known)}{hint}")


def _plots(rows: Rows) -> Iterator[tuple[str, Markup]]:
    """Yield each plot with its file name; no name occurs twice."""
    taken: set[str] = set()
    for title, plot in _titled(rows):
        name = file_name(title)
        while name in taken:
            name += "_"
        taken.add(name)
        yield name, plot


def _titled(rows: Rows) -> Iterator[tuple[str, Markup]]:
    runs = numbered(rows.records)
    for figure in difference_figures(rows.suites):
        yield figure.title, figure.plot
    for suite in rows.suites:
        for figure in cost_figures([runs[row.number] for row in suite.rows][:MOST_RUNS]):
            if figure.plot:
                yield f"{suite.title} {figure.title}", figure.plot
    for figure in scaling_figures(runs):
        yield figure.title, figure.plot


def file_name(title: str) -> str:
    """Return the title as a file name that LaTeX accepts: without dots and spaces."""
    return re.sub(r"[^0-9A-Za-z]+", "_", title).strip("_").lower()[:120]
