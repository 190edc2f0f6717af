"""Evaluate the model of a run by tasks, and go on where an earlier evaluation of the same was ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from efficientbench.evaluation.contamination import without_contaminated
from efficientbench.evaluation.progress import EvaluationProgress
from efficientbench.evaluation.publish import publish
from efficientbench.evaluation.registry import check_names, combined, find_task
from efficientbench.evaluation.results import FOLDER, ResultFile
from efficientbench.evaluation.task import Options, Summary, Task
from efficientbench.generation.opened import opened
from efficientbench.training.checkpoints.manifest import checkpoint_folder, identity

if TYPE_CHECKING:
    from efficientbench.generation.opened import Opened


def evaluate(names: Sequence[str], options: Options, step: int | None, console: Console) -> dict[str, Summary]:
    """Score a run's model by tasks; write `evaluation/` in its folder, and print each summary.

    Args:
        names: of the tasks.
        options: of the command.
        step: of the checkpoint; None: the newest that is whole.
        console: for progress and figures.

    Raises:
        ConfigError: there is no such task, run or checkpoint, or a task's items are not at hand.
        CheckpointError: the checkpoint is damaged.
        DataError: a task's items, or the tokenizer, are damaged.
        DeviceError: this machine cannot use the run's device.
        GenerationError: the model computed NaN.
        MetricsError: a result cannot be written.
    """
    check_names(list(names))
    summaries = {}
    with opened(options.folder, step) as run:
        for problem in run.warnings:
            console.print(f"warning: {problem}")
        # All of them before the first is scored, which may take hours.
        tasks = [find_task(name)(run, options) for name in names]
        about = {"step": run.step, "checkpoint_sha256": identity(checkpoint_folder(options.folder, run.step))}
        for task in tasks:
            summaries[task.name] = _evaluate(task, options, {"task": task.name, **about}, run, console)
        for name, summary in combined(summaries).items():
            members = [task for task in tasks if task.name in summary.parts["centred"]]
            settings = {task.name: dict(task.settings) for task in members}
            items = sum(len(task.items()) for task in members)
            publish(options.folder, {"task": name, **about, "settings": settings}, items, summary, console)
            summaries[name] = summary
    return summaries


def _evaluate(task: Task, options: Options, about: dict[str, Any], run: Opened, console: Console) -> Summary:
    items = task.items()
    costs = {item.name: item.cost for item in items}
    header = {**about, "settings": dict(task.settings)}
    path = options.folder / FOLDER / f"{task.name}.jsonl"
    with ResultFile(path, header) as file:
        if file.replaced is not None:
            console.print(f"{path}: begun anew: it held step {file.replaced.get('step')} or other settings")
        left = [item for item in items if item.name not in file.results]
        if len(left) < len(items):
            console.print(f"{task.name}: {len(items) - len(left):,} of {len(items):,} items are there")
        with EvaluationProgress(task.name, len(left), sum(item.cost for item in left), console) as progress:
            for results in task.score(left):
                file.append(results)
                progress.add(len(results), sum(costs[result.item] for result in results))
        found = {item.name: file.results[item.name] for item in items}
    summary = task.summary(found)
    if options.contamination:
        summary = without_contaminated(task, found, summary, options.folder)
    facts = {"dtype": run.config.training.dtype, "device": next(run.model.parameters()).device.type}
    publish(options.folder, {**header, **facts}, len(items), summary, console)
    return summary
