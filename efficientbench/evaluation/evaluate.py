"""Evaluate a run's model on tasks, and resume an interrupted evaluation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from efficientbench.basics.errors import EvaluationError
from efficientbench.config.quantization import Quantization
from efficientbench.evaluation.contamination import job_with_text, without_contaminated
from efficientbench.evaluation.registry import check_names, make_task
from efficientbench.evaluation.results import FOLDER, ResultFile, publish, summary_of
from efficientbench.evaluation.task import Options, Summary, Task
from efficientbench.generation.open_run import Opened, Share, opened
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.running.failures import ran_out_of_memory
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import checkpoint_folder, identity

LINE_INTERVAL_S = 30.0
"""Seconds between two lines of progress where the output is not a terminal."""


class EvaluationProgress:
    """The progress of one task; estimates the remaining time from the cost of the items so far."""

    def __init__(self, task: str, items: int, cost: float, console: Console) -> None:
        """Take the task's name, the number of items to score, their total cost, and the console."""
        self.task, self.items, self.cost, self.console = task, items, cost, console
        self.done, self.done_cost = 0, 0.0
        self.begin_s = self.line_s = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.row = self.bar.add_task(task, total=cost, left="")

    def __enter__(self) -> EvaluationProgress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def add(self, items: int, cost: float) -> None:
        """Count scored items and their cost, and show the progress."""
        self.done, self.done_cost = self.done + items, self.done_cost + cost
        now_s = time.monotonic()
        left_s = (now_s - self.begin_s) * (self.cost / self.done_cost - 1)
        text = f"{self.done:,} of {self.items:,} items, {timedelta(seconds=round(left_s))} left"
        self.bar.update(self.row, completed=self.done_cost, left=text)
        if not self.console.is_terminal and now_s - self.line_s >= LINE_INTERVAL_S:
            self.line_s = now_s
            self.console.print(f"{self.task}: {text}")


def evaluate(
    names: Sequence[str],
    options: Options,
    step: int | None,
    console: Console,
    share: Share | None = None,
    quantization: Quantization | None = None,
) -> dict[str, Summary]:
    """Score a run's model on tasks; write `evaluation/` in the run's folder, and print each summary.

    Of quantized weights, `evaluation/` is in the folder `quantized/<name>/` of the run.

    Args:
        names: the tasks' names.
        options: the command's options.
        step: the checkpoint's step; None: the newest intact checkpoint.
        console: prints progress and figures.
        share: the rank's share of the model, see `opened`; None: this process alone.
        quantization: the form of the linear layers' weights, see `opened`.

    Returns:
        The summaries by the tasks' names; empty on all ranks but the first, which writes them.

    Raises:
        ConfigError: there is no such task, run or checkpoint, or a task's items are missing.
        CheckpointError: the checkpoint is damaged.
        DataError: a task's items, or the tokenizer, are damaged.
        DeviceError: this machine cannot use the run's device.
        GenerationError: the model computed NaN.
        EvaluationError: out of memory.
        MetricsError: a result cannot be written, or an earlier result is damaged.
    """
    check_names(list(names))
    summaries = {}
    folder = OutputFolder(options.folder).quantized(quantization).path
    with opened(options.folder, step, share, quantization) as run:
        for problem in run.warnings:
            print_stderr(f"warning: {problem}")
        # Make all tasks before scoring the first, which may take hours.
        tasks = [make_task(name, run, options) for name in names]
        if options.contamination:
            job_with_text(options.folder)
        about = about_run(options.folder, run)
        for task in tasks:
            with memory_errors_explained(options.batch_tokens):
                found = _evaluate(task, options, folder, {"task": task.name, **about}, run, console)
            if found is not None:
                summaries[task.name] = found
        # This imports torch, which needs the prepared device.
        from efficientbench.evaluation.chat.chat_tasks import chat_core

        combined = chat_core(summaries)
        if combined is not None:
            members = [task for task in tasks if task.name in combined.parts["centred"]]
            settings = {task.name: dict(task.settings) for task in members}
            items = sum(len(task.items()) for task in members)
            publish(folder, {"task": "chat_core", **about, "settings": settings}, items, combined, console)
            summaries["chat_core"] = combined
    return summaries


def about_run(folder: Path, run: Opened) -> dict[str, Any]:
    """Return what results say of the checkpoint in a run's folder, and of its quantization."""
    quantized = {} if run.form is None else {"quantization": run.form.quantization.name}
    return {"step": run.step, "checkpoint_sha256": identity(checkpoint_folder(folder, run.step)), **quantized}


@contextlib.contextmanager
def memory_errors_explained(batch_tokens: int) -> Iterator[None]:
    """Raise an EvaluationError that suggests a smaller batch if the block runs out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise EvaluationError(
            f"out of memory: {first_line}; scored items are saved; resume with --batch-tokens below {batch_tokens:,}"
        ) from None


def _evaluate(
    task: Task, options: Options, folder: Path, about: dict[str, Any], run: Opened, console: Console
) -> Summary | None:
    """Score a task, and write its results below `folder`; return its summary on the rank that writes."""
    # This imports Megatron, which needs the prepared device.
    from efficientbench.evaluation.ranks import is_first, of_first, scored

    items = task.items()
    costs = {item.name: item.cost for item in items}
    header = {**about, "settings": dict(task.settings)}
    path = folder / FOLDER / f"{task.name}.jsonl"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(ResultFile(path, header)) if is_first() else None
        if file is not None and file.replaced is not None:
            console.print(f"{path}: starting anew: its results are of {file.differences}")
        there = set(of_first(list(file.results) if file is not None else []))
        left = [item for item in items if item.name not in there]
        if len(left) < len(items):
            console.print(f"{task.name}: {len(items) - len(left):,} of {len(items):,} items are there")
        begin_s = time.monotonic()
        with EvaluationProgress(task.name, len(left), sum(item.cost for item in left), console) as progress:
            for results in scored(task, left):
                if file is not None:
                    file.append(results)
                    progress.add(len(results), sum(costs[result.item] for result in results))
        computed_s = time.monotonic() - begin_s
    if file is None:
        return None
    found = {item.name: file.results[item.name] for item in items}
    summary = summary_of(task, found, path if there else None)
    if options.contamination:
        summary = without_contaminated(task, found, summary, options.folder, run.report)
    facts = {
        "dtype": run.config.training.dtype,
        "device": next(run.model.parameters()).device.type,
        "tp": run.config.parallel.tp,
        "dp": run.config.parallel.dp or 1,
        "computed_items": len(left),
        "computed_s": computed_s,
    }
    publish(folder, {**header, **facts}, len(items), summary, console)
    return summary
