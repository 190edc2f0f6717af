"""Evaluations in reports: the figures of all runs of a folder, and those of two runs paired by item."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from efficientbench.basics.checksum import KEY as CHECKSUM
from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import plain_text
from efficientbench.metrics.analysis.paired import CORE, FOLDER, Evaluations, Paired
from efficientbench.metrics.formulas.student import Z_95, score_interval_95, wilson_95
from efficientbench.metrics.records.evaluation import read_evaluation
from efficientbench.metrics.records.stored import current_files, read_each
from efficientbench.metrics.report.columns import csv_text
from efficientbench.metrics.report.table import ABSENT, Table, number, print_table

CSV_NAME = "evaluations.csv"
_OF_ITEMS = ("accuracy", "chat_core")
"""Figures whose standard error over the items the summary's parts have."""


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
    interval: tuple[float, float] | None
    """The value's 95 % interval over items; None where the summary does not have their spread."""
    limit: int | None
    """The most items of a task, or of each of CORE's tasks; None: all."""


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
        parts, limit = content.get("parts") or {}, (content.get("settings") or {}).get("limit")
        limit = None if limit is None else int(limit)
        intervals = {name: _interval(name, figures, parts, items) for name in figures}
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        problem = f"it is no summary of an evaluation, {type(error).__name__}: {error}"
        raise MetricsError(f"{path}: cannot be read ({problem})") from None
    run, task = plain_text(str(path.parent.parent.relative_to(folder))), plain_text(path.stem)
    why = {name: reasons.get(name, "no reason is given") if value is None else "" for name, value in figures.items()}
    of_task = [
        TaskFigure(run, task, name, value, why[name], items, step, intervals[name], limit)
        for name, value in figures.items()
    ]
    return Evaluated(run, task, tuple(of_task), content.get(CHECKSUM) is not None)


def _interval(
    name: str, figures: Mapping[str, float | None], parts: Mapping[str, Any], items: int
) -> tuple[float, float] | None:
    """Return a figure's 95 % interval over items; None where its summary does not have their spread."""
    value = figures[name]
    if value is None or items < 1:
        return None
    if name == CORE:
        return core_interval(value, [part for part in parts.values() if isinstance(part, dict) and "baseline" in part])
    if isinstance(parts.get(name), dict) and "baseline" in parts[name]:
        return wilson_95(value, int(parts[name]["items"])) if 0 <= value <= 1 else None
    # lm-eval's figures have theirs beside them, before the filter's name: "acc_stderr,strict".
    metric, comma, behind = name.partition(",")
    error = figures.get(f"{metric}_stderr{comma}{behind}")
    if name in _OF_ITEMS:
        error = parts.get("standard_error")
    elif error is None:
        return None
    error = None if error is None else float(error)
    return score_interval_95(value, error, items) if error is None or 0 <= error < math.inf else None


def core_interval(core: float, tasks: Iterable[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Return CORE's 95 % interval over its tasks' items; its tasks themselves are no sample. None without tasks.

    Args:
        core: the mean of the tasks' centred accuracies.
        tasks: each task's `accuracy`, `items` and `baseline`.
    """
    errors = []
    for task in tasks:
        # Two right and two wrong items are added (Agresti and Coull, 1998): all right would have no spread.
        items = int(task["items"]) + 4
        share = (float(task["accuracy"]) * (items - 4) + 2) / items
        errors.append(math.sqrt(share * (1 - share) / items) / (1 - float(task["baseline"])))
    margin = Z_95 * math.hypot(*errors) / max(len(errors), 1)
    return (core - margin, core + margin) if errors else None


def evaluations_table(evaluated: Sequence[Evaluated]) -> Table:
    """Return a row for each figure of each evaluation."""
    # A small bundle lacks most tasks of CORE: CORE's own reason names them.
    found = [each for task in evaluated for each in task.figures]
    shown = [each for each in found if each.value is not None or each.task != CORE or each.name == CORE]
    rows = [
        (
            *(each.run, each.task, each.name, number(each.value, ".4g"), _range(each), f"{each.items:,}"),
            *("" if each.limit is None else f"{each.limit:,}", f"{each.step:,}"),
        )
        for each in shown
    ]
    notes = dict.fromkeys(f"{ABSENT} {each.name}: {each.reason}" for each in shown if each.value is None)
    header = ("run", "task", "figure", "value", "95 %", "items", "limit", "step")
    return Table(header, rows, (0, 1, 2), notes=tuple(notes))


def evaluations_csv(evaluated: Sequence[Evaluated]) -> str:
    """Return every figure of these evaluations, at full precision."""
    names = [field.name for field in fields(TaskFigure) if field.name != "interval"]
    figures = [each for task in evaluated for each in task.figures]
    ends = [each.interval or (None, None) for each in figures]
    rows = (vars(each) | {"low": low, "high": high} for each, (low, high) in zip(figures, ends, strict=True))
    return csv_text([*names, "low", "high"], rows)


def _range(each: TaskFigure) -> str:
    return "" if each.interval is None else "{:.3g} to {:.3g}".format(*each.interval)


def print_evaluations(found: Evaluations, console: Console) -> None:
    """Print the figures of two runs over the same items, and the notes; nothing where there are none."""
    if not found.paired and not found.notes:
        return
    console.print()
    if found.paired:
        console.print(Text("Evaluations, over the items that both were given, paired by item:"))
        rows = [paired_row(each) for each in found.paired]
        print_table(Table(PAIRED, rows, text_columns=(0, 7)), console, gap=1)
        verdict = "A verdict is about these two checkpoints. Between runs of another seed there are differences too."
        console.print(Text(f"{P_VALUES}\n{verdict}"))
    for each in found.paired:
        if each.unpaired:
            task = each.name.partition(":")[0]
            console.print(Text(f"{task}: {each.unpaired:,} items have no partner: they were given otherwise"))
    for note in found.notes:
        console.print(Text(plain_text(note)))


PAIRED = ("task", "items", "A", "B", "B − A", "95 %", "p", "verdict")
"""Titles of the cells of `paired_row`."""
P_VALUES = (
    "p: exact McNemar test; of losses and of several samples Student's t over the items; of CORE, centred on chance, "
    "the normal distribution over its tasks' items; all together by Holm's correction."
)


def paired_row(each: Paired) -> tuple[str, ...]:
    """Return a paired figure's cells, as `PAIRED` names them."""
    digits = ".1%" if each.unit == "right" else ".4f"
    figures = [format(value, digits) for value in (each.first, each.second)]
    signed = [format(value, f"+{digits}") for value in (each.difference, each.low, each.high)]
    interval = f"{signed[1]} to {signed[2]}"
    return (each.name, f"{each.items:,}", *figures, signed[0], interval, f"{each.p:.2g}", each.verdict)
