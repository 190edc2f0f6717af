"""The command `efficientbench plot`."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class PlotFormat(str, Enum):
    """Formats that `plot` writes."""

    SVG = "svg"
    PDF = "pdf"


def plot(
    folder: Annotated[
        Path, typer.Argument(metavar="REPORT", help="folder of runs, like output/efficientllm_benchmark")
    ],
    form: Annotated[PlotFormat, typer.Option("--format", help="of the plots")] = PlotFormat.SVG,
) -> None:
    """Write the report's plots as files of their own, and its answers as LaTeX tables, into REPORT/plots."""
    from efficientbench.metrics.report.paper.paper_plots import write_plots

    written, warnings = write_plots(folder, form.value)
    for line in warnings:
        print(f"warning: {line}", file=sys.stderr)
    for path in written:
        print(path)
