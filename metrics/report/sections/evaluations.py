"""Evaluations in reports: the figures of all runs of a folder, and those of two runs paired by item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.text import Text

from efficientbench.basics.checksum import KEY as CHECKSUM
from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import plain_text
from efficientbench.metrics.analysis.paired import CORE, FOLDER, Evaluations, Paired
from efficientbench.metrics.records.evaluation import read_evaluation
from efficientbench.metrics.records.stored import current_files, read_each
from efficientbench.metrics.report.columns import csv_text
from efficientbench.metrics.report.table import ABSENT, Table, number, print_table

CSV_NAME = "evaluations.csv"


@dataclass(frozen=True)
class TaskFigure:
    """One figure of one evaluation."""

    run: str
    """The run's folder, relative to the reported folder."""
    task: str
    name: str
    value: float | None
    reason: str
    """Why the value is None; empty for a number."""
    items: int
    """Number of the task's items."""
    step: int
    """The checkpoint's step."""


@dataclass(frozen=True)
class Evaluated:
    """One evaluation of one run."""

    run: str
    """The run's folder, relative to the reported folder."""
    task: str
    figures: tuple[TaskFigure, ...]
    checked: bool
    """Whether the file has a checksum, which then was verified; files of earlier versions have none."""


def load_evaluations(folder: Path) -> tuple[list[Evaluated], list[str]]:
    """Return all evaluations below a folder, and a message for each file that cannot be read as one."""
    return read_each(current_files(folder, f"{FOLDER}/*.json"), lambda path: _read(path, folder))


def _read(path: Path, folder: Path) -> Evaluated:
    content = read_evaluation(path)
    try:
        step, items = int(content["step"]), int(content["items"])
        figures = {str(name): None if value is None else float(value) for name, value in content["figures"].items()}
        reasons = {str(name): str(reason) for name, reason in content["unavailable"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        problem = f"it is no summary of an evaluation, {type(error).__name__}: {error}"
        raise MetricsError(f"{path}: cannot be read ({problem})") from None
    run, task = plain_text(str(path.parent.parent.relative_to(folder))), plain_text(path.stem)
    why = {name: reasons.get(name, "no reason is given") if value is None else "" for name, value in figures.items()}
    of_task = [TaskFigure(run, task, name, value, why[name], items, step) for name, value in figures.items()]
    return Evaluated(run, task, tuple(of_task), content.get(CHECKSUM) is not None)


def evaluations_table(evaluated: Sequence[Evaluated]) -> Table:
    """Return a row for each figure of each evaluation."""
    # A small bundle lacks most tasks of CORE: CORE's own reason names them.
    found = [each for task in evaluated for each in task.figures]
    shown = [each for each in found if each.value is not None or each.task != CORE or each.name == CORE]
    rows = [
        (each.run, each.task, each.name, number(each.value, ".4g"), f"{each.items:,}", f"{each.step:,}")
        for each in shown
    ]
    notes = dict.fromkeys(f"{ABSENT} {each.name}: {each.reason}" for each in shown if each.value is None)
    return Table(("run", "task", "figure", "value", "items", "step"), rows, (0, 1, 2), notes=tuple(notes))


def evaluations_csv(evaluated: Sequence[Evaluated]) -> str:
    """Return every figure of these evaluations, at full precision."""
    figures = (vars(each) for task in evaluated for each in task.figures)
    return csv_text([field.name for field in fields(TaskFigure)], figures)


def print_evaluations(found: Evaluations, console: Console) -> None:
    """Print the figures of two runs over the same items, and the notes; nothing where there are none."""
    if not found.paired and not found.notes:
        return
    console.print()
    if found.paired:
        console.print(Text("Evaluations, over the items that both were given, paired by item:"))
        header = ("task", "items", "A", "B", "B − A", "95 %", "p", "verdict")
        rows = [_row(each) for each in found.paired]
        print_table(Table(header, rows, text_columns=(0, 7)), console, gap=1)
        lines = (
            "p: exact McNemar test; of losses and of several samples Student's t over the items; all together by "
            "Holm's correction.",
            "A verdict is about these two checkpoints. Between runs of another seed there are differences too.",
        )
        console.print(Text("\n".join(lines)))
    for each in found.paired:
        if each.unpaired:
            task = each.name.partition(":")[0]
            console.print(Text(f"{task}: {each.unpaired:,} items have no partner: they were given otherwise"))
    for note in found.notes:
        console.print(Text(plain_text(note)))


def _row(each: Paired) -> tuple[str, ...]:
    digits = ".4f" if each.unit == "nats" else ".1%"
    figures = [format(value, digits) for value in (each.first, each.second)]
    signed = [format(value, f"+{digits}") for value in (each.difference, each.low, each.high)]
    interval = f"{signed[1]} to {signed[2]}"
    return (each.name, f"{each.items:,}", *figures, signed[0], interval, f"{each.p:.2g}", each.verdict)
