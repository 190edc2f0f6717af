"""Publish a task's summary: write its file, the run's record and TensorBoard's scalars, and print the figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from efficientbench.basics.errors import MetricsError
from efficientbench.evaluation.results import FOLDER, read_scores, write_summary
from efficientbench.evaluation.task import Summary
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.metrics.records.sinks.tensorboard import TensorBoardLog
from efficientbench.running.output_folder import OutputFolder


def publish(folder: Path, header: Mapping[str, Any], items: int, summary: Summary, console: Console) -> None:
    """Write `evaluation/<task>.json`, the run's record and TensorBoard's scalars, and print the figures.

    Args:
        folder: the run's folder.
        header: `task`, `step`, and everything else that decides the results.
        items: the number of the task's items.
        summary: the summary of these items.
        console: prints the figures.

    Raises:
        MetricsError: a file cannot be written.
    """
    task = header["task"]
    write_summary(folder / FOLDER / f"{task}.json", header, items, summary)
    _put_into_record(folder, console)
    log = TensorBoardLog(OutputFolder(folder).tensorboard)
    log.scalars(header["step"], {f"evaluation/{task}/{name}": value for name, value in summary.figures.items()})
    log.close()
    for name, value in summary.figures.items():
        shown = f"n/a: {summary.unavailable[name]}" if value is None else f"{value:.6g}"
        console.print(f"{task}: {name} {shown}", highlight=False)


def _put_into_record(folder: Path, console: Console) -> None:
    """Put the evaluations into the run's record, if there is one; an unfinished or imported run has none."""
    path = OutputFolder(folder).record
    if not path.exists():
        return
    try:
        record = read_record(path)
        write_record(record.model_copy(update={"evaluations": read_scores(folder / FOLDER)}), path)
    except MetricsError as error:
        # For example a record of another version, which this version does not read.
        console.print(f"warning: the evaluation was not added to the record: {error}")
