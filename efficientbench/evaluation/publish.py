"""Publish a task's summary: in its file, in the run's record, in TensorBoard, and in lines for people."""

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
    """Write `evaluation/<task>.json`, the record and TensorBoard's scalars in a run's folder, and print the figures.

    Args:
        folder: of the run.
        header: has `task`, `step`, and all that decides the results.
        items: of the task.
        summary: of these items.
        console: for the figures.

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
    """Put what was evaluated into a run's record; a run that has not ended, or was imported, has none."""
    path = OutputFolder(folder).record
    if not path.exists():
        return
    try:
        record = read_record(path)
        write_record(record.model_copy(update={"evaluations": read_scores(folder / FOLDER)}), path)
    except MetricsError as error:
        # As that of a version whose records this one does not read.
        console.print(f"warning: the record stays without this evaluation: {error}")
