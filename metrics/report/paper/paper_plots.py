"""Writes the report's plots as separate files, and the answers as LaTeX tables, for papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from markupsafe import Markup

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.rivals import QUESTIONS
from efficientbench.metrics.files import whole_file, write_whole
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import RECORD_NAME
from efficientbench.metrics.report.choice import Choice
from efficientbench.metrics.report.headline import HEADLINE
from efficientbench.metrics.report.paper.latex import latex_tables
from efficientbench.metrics.report.paper.standalone import pdf_file, png_file, svg_file
from efficientbench.metrics.report.plots.axis_plots import axis_curves
from efficientbench.metrics.report.plots.difference_plots import difference_figures
from efficientbench.metrics.report.plots.loss_plots import cost_figures
from efficientbench.metrics.report.plots.scaling_plots import scaling_figures
from efficientbench.metrics.report.plots.svg import MOST_RUNS, numbered
from efficientbench.metrics.report.suites import Rows, make_rows

FOLDER = "plots"
TABLES = "tables.tex"
WRITERS: dict[str, Callable[[Markup], bytes]] = {
    "svg": lambda plot: svg_file(plot).encode(),
    "pdf": pdf_file,
    "png": png_file,
}
"""File extension → what turns a plot into the file's content."""


def write_plots(folder: Path, form: str, choice: Choice) -> tuple[list[Path], list[str]]:
    """Write the plots of a folder of runs, and the LaTeX tables, into `plots/` below it.

    Args:
        folder: the folder of runs.
        form: a key of WRITERS.
        choice: the runs to show, and the figures of the tables; by itself those by which a report says what is best.

    Returns:
        The written files, and a message for each record that cannot be read.

    Raises:
        MetricsError: no record below the folder can be read, no run was completed, no run or column has such a name, or
            a file cannot be written.
        ModuleNotFoundError: as `pdf_file`, before anything is written.
    """
    records, damaged = load_records(folder)
    choice.check(records, HEADLINE)
    rows = make_rows(list(filter(choice.holds, records)))
    if not rows.suites:
        raise MetricsError(f"{folder}: no completed run's record ({RECORD_NAME}) lies below it to plot")
    target = folder / FOLDER
    drawn = {target / f"{name}.{form}": WRITERS[form](plot) for name, plot in _plots(rows)}
    write_whole(target / TABLES, latex_tables(rows.suites, choice.columns or QUESTIONS))
    for path, content in drawn.items():
        with whole_file(path) as file:
            file.write(content)
    return [target / TABLES, *drawn], damaged


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
    for figure in (*axis_curves(runs), *scaling_figures(runs)):
        yield figure.title, figure.plot


def file_name(title: str) -> str:
    """Return the title as a file name that LaTeX accepts: without dots and spaces."""
    return re.sub(r"[^0-9A-Za-z]+", "_", title).strip("_").lower()[:120]
