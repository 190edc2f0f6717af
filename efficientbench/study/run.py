"""A study from its plan to its runs: the search of rates, then every cell of the ladder, on the queue of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from efficientbench.basics.errors import ConfigError
from efficientbench.study.cells import LadderPlan, check_text
from efficientbench.study.found import costs_at_target, matching, study_run
from efficientbench.study.run_record import record_of
from efficientbench.study.runs import Study
from efficientbench.study.search import Searched, keep_slope, search
from efficientbench.study.trunks import Planned, remove_marked, without_gone
from efficientbench.sweep.queue import Queue
from efficientbench.sweep.sweep import Manner, run_tasks, tell_ends
from efficientbench.sweep.task import Task, take_turns


def train(plan: LadderPlan, manner: Manner) -> int:
    """Train what a study still lacks: the search of its rates, then its cells.

    Returns:
        0 when every run is done, 1 when some failed or cannot run, 130 after Ctrl-C, 143 after SIGTERM,
        129 after SIGHUP.

    Raises:
        ConfigError: the folder cannot be written, the baseline has no learning rate, or the text is too short.
    """
    searched, stopped = _search(plan, manner)
    if stopped:
        return stopped
    for variant, reason in searched.without.items():
        if variant == plan.section.baseline:
            raise ConfigError(f"study: the baseline has no learning rate: {reason}")
        print(f"{variant}: no place in the verdict: {reason}", flush=True)
    found = [run for run in plan.runs(searched.rates) if run.variant not in searched.without]
    _check_epochs(plan, searched)
    queue = Queue(plan.suite)
    tasks: list[Task] = [run.task for run in _generating(plan, without_gone(found))]
    variants = {run.task.id: run.variant for run in found}
    queue.make()
    keep_slope(plan.suite, searched.slope)
    tasks = take_turns(tasks, queue.folder, lambda task: variants[task.id])
    # The search's are done, which a killed call may not have written into the queue.
    stopped = run_tasks([*searched.done, *tasks], plan.suite, manner)
    remove_marked(found)
    all_done = tell_ends([*searched.failed, *tasks], queue)
    return stopped or (0 if all_done and not searched.without else 1)


def _search(plan: LadderPlan, manner: Manner) -> tuple[Searched, int]:
    """Train what the search of rates lacks; return what it found, and the exit code of the signal that stopped it."""
    tried: set[str] = set()
    while True:
        searched = search(plan)
        tasks: Sequence[Task] = [*searched.open, *(searched.failed if manner.retry_failed else ())]
        tasks = [task for task in tasks if task.id not in tried]
        if not tasks:
            return searched, 0
        if stopped := run_tasks(tasks, plan.suite, manner):
            return searched, stopped
        tried |= {task.id for task in tasks}


def _check_epochs(plan: LadderPlan, searched: Searched) -> None:
    """Raise ConfigError where a cell would read the text too often, by what a run of the search has read."""
    for (variant, size), losses in searched.losses.items():
        for rate in losses:
            record, _ = record_of(plan.search(variant, size, rate))
            if record is not None and record.epochs is not None and record.tokens_trained:
                check_text(plan, record.epochs / record.tokens_trained)
                return


def _generating(plan: LadderPlan, runs: Sequence[Planned]) -> list[Planned]:
    """Return the runs, of which the first seed of the largest cell measures generation too, where that is asked for."""
    if not plan.request.generate:
        return list(runs)
    largest = max(plan.cells.values(), key=lambda cell: (cell.parameters, cell.tokens))
    first = min(run.seed for run in runs)
    return [replace(run, task=replace(run.task, generates=run.cell == largest and run.seed == first)) for run in runs]


def found_study(plan: LadderPlan, name: str, price_per_hour: float | None = None) -> Study:
    """Return a study as it is on disk."""
    searched = search(plan)
    runs = tuple(study_run(run, searched.rates.get((run.variant, run.cell.size))) for run in plan.runs(searched.rates))
    devices = [run.record.device_name for run in runs if run.record is not None]
    return Study(
        name,
        plan.suite,
        plan.section,
        plan.target,
        runs,
        searched.losses,
        searched.without,
        searched.slope,
        matching(plan),
        costs_at_target(plan, runs),
        devices[0] if devices else None,
        price_per_hour,
    )
