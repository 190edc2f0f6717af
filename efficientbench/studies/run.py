"""A study from its plan to its runs: the search of rates, then every cell of the ladder, on the queue of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.launchers.processes.failure import read_failure
from efficientbench.metrics.records.generation.generation import generation_of
from efficientbench.planning.text import tokenized
from efficientbench.studies.cells import RISE, LadderPlan, check_text, unreadable_text
from efficientbench.studies.runs import MatchLeft, Study, StudyRun
from efficientbench.studies.search import Searched, keep_slope, search
from efficientbench.studies.target_costs import costs_at_target
from efficientbench.studies.tasks import OTHER, Planned, StudyTask, other_values, record_of, remove_marked, without_gone
from efficientbench.sweep.queue import Queue
from efficientbench.sweep.scheduler import Manner
from efficientbench.sweep.sweep import run_tasks, tell_ends
from efficientbench.sweep.task import Task, take_turns


def train(plan: LadderPlan, manner: Manner) -> int:
    """Train what a study still lacks: the search of its rates, then its cells.

    Returns:
        0 when every run is done, 1 when some failed or cannot run, 130 after Ctrl-C, 143 after SIGTERM,
        129 after SIGHUP.

    Raises:
        ConfigError: the folder cannot be written, the baseline has no learning rate, or the text is not there or too
            short.
    """
    is_trained = all(record_of(run.task, any_rate=True)[0] for run in plan.runs({}))
    if not is_trained and (unreadable := unreadable_text(plan)):
        raise ConfigError(unreadable)
    told = replaced(plan)
    _say(told)
    if stopped := _search(plan, manner):
        return stopped
    searched = _with_kept_slope(plan)
    # A search may have found other rates than cells were trained with.
    _say(line for line in replaced(plan) if line not in told)
    for variant, reason in searched.without.items():
        if variant == plan.section.baseline:
            failed = any(task.config is not None and task.config.variant == variant for task in searched.failed)
            hint = "; --retry-failed tries it again" if failed else ""
            raise ConfigError(f"study: the baseline has no learning rate: {reason}{hint}")
        _say([f"{variant}: no place in the verdict: {reason}"])
    found = without_gone([run for run in plan.runs(searched.rates) if run.variant not in searched.without])
    trained: list[StudyTask] = [run.task for run in found]
    if not _are_epochs_checked(plan, [*searched.done, *trained]) and (stopped := _train_first(plan, found, manner)):
        return stopped
    queue, variants = Queue(plan.suite), {run.task.id: run.variant for run in found}
    tasks = take_turns(trained, queue.folder, lambda task: variants[task.id])
    # The search's are done, which a killed call may not have written into the queue.
    stopped = run_tasks([*searched.done, *tasks], plan.suite, manner)
    # A trunk whose generation fails is trained all the same, and has branches: these come first.
    if not stopped and (generating := _generating(plan, found)):
        stopped = run_tasks(generating, plan.suite, manner)
    with queue.changing():
        remove_marked(found)
    all_done = tell_ends([*searched.failed, *tasks], queue)
    return stopped or (0 if all_done and not searched.without else 1)


def replaced(plan: LadderPlan) -> list[str]:
    """Return what to say before complete runs are trained again, since they were trained otherwise."""
    searched = search(plan)
    reasons = [record_of(task)[1] for task in searched.open]
    for run in plan.runs(searched.rates):
        reasons.append(record_of(run.task, any_rate=(run.variant, run.cell.size) not in searched.rates)[1])
    return [
        f"warning: {number_of(times, 'complete run')} will be trained again, and what is there moves to previous/ "
        f"(output=FOLDER keeps it): each {reason.removeprefix('its ')}"
        + (f", which is {RISE:g} of a size's fewest tokens" if "lr_warmup_tokens" in reason else "")
        for reason, times in Counter(filter(None, reasons)).items()
        if reason.startswith(OTHER)
    ]


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _with_kept_slope(plan: LadderPlan) -> Searched:
    """Return what the search found, with the slope of whoever was the first to know one."""
    queue = Queue(plan.suite)
    queue.make()
    with queue.changing():
        keep_slope(plan.suite, search(plan).slope)
    return search(plan)


def _search(plan: LadderPlan, manner: Manner) -> int:
    """Train what the search of rates lacks; return 0, or the exit code of the signal that stopped it."""
    tried: set[str] = set()
    while True:
        searched = search(plan)
        tasks: Sequence[Task] = [*searched.open, *(searched.failed if manner.retry_failed else ())]
        tasks = [task for task in tasks if task.id not in tried]
        if not tasks:
            return 0
        if stopped := run_tasks(tasks, plan.suite, manner):
            return stopped
        tried |= {task.id for task in tasks}


def _are_epochs_checked(plan: LadderPlan, tasks: Sequence[StudyTask]) -> bool:
    """Return whether one of these runs has read the text, and so told how long it is.

    Raises ConfigError: a cell would read it too often.
    """
    for task in tasks:
        record, _ = record_of(task)
        if record is not None and record.epochs is not None and record.tokens_trained:
            check_text(plan, record.epochs / record.tokens_trained)
            return True
    return False


def _train_first(plan: LadderPlan, runs: Sequence[Planned], manner: Manner) -> int:
    """Train the smallest run before the others where the text is not tokenized yet. Returns and raises as `train`."""
    first = min((run for run in runs if not run.begin), key=lambda run: run.cell.parameters).task
    if first.config is None or tokenized(first.config.data) is not None:
        return 0
    stopped = run_tasks([first], plan.suite, manner)
    _are_epochs_checked(plan, [first])
    return stopped


def _generating(plan: LadderPlan, runs: Sequence[Planned]) -> list[Task]:
    """Return the runs that measure generation too, where that is asked for: of the largest cell, the first seed."""
    largest = max(plan.cells.values(), key=lambda cell: (cell.parameters, cell.tokens))
    first = min(run.seed for run in runs)
    chosen = [run.task for run in runs if run.cell == largest and run.seed == first]
    return [replace(task, generates=True) for task in chosen] if plan.request.generate else []


def found_study(
    plan: LadderPlan, name: str, price_per_hour: float | None = None, served_tokens: float | None = None
) -> Study:
    """Return a study as it is on disk."""
    searched = search(plan)
    planned = plan.runs(searched.rates)
    runs = tuple(_study_run(run, searched.rates.get((run.variant, run.cell.size))) for run in planned)
    otherwise = [of.task for of, run in zip(planned, runs, strict=True) if (run.reason or "").startswith(OTHER)]
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
        _matching(plan),
        costs_at_target(plan, runs),
        devices[0] if devices else None,
        price_per_hour,
        served_tokens,
        {key: value for task in otherwise for key, value in other_values(task).items()},
    )


def _study_run(run: Planned, rate: float | None) -> StudyRun:
    """Return a run of the plan as it is on disk; `rate`: its learning rate, None where that is not known yet."""
    task = run.task
    where = run.variant, run.cell, run.seed, task.folder.path
    record, reason = record_of(task, any_rate=rate is None)
    if record is not None:
        trained = record.section("training").get("learning_rate")
        told = record.speed_only_reason
        if told is not None:
            return StudyRun(*where, "speed only", trained, record, told)
        if record.validation_loss is None:
            return StudyRun(*where, "failed", trained, record, record.unavailable.get("validation_loss"))
        return StudyRun(*where, "complete", trained, record, None, generation_of(task.folder.path))
    failure = task.refused or read_failure(task.folder.failure)
    if failure is not None and failure.kind != "stopped":
        return StudyRun(*where, "failed", rate, None, f"{failure.kind.replace('_', ' ')}: {failure.reason}")
    return StudyRun(*where, "missing", rate, None, reason or "not trained yet")


def _matching(plan: LadderPlan) -> dict[tuple[str, str], MatchLeft]:
    """Return (variant, size) → what matching came to; empty without a match."""
    return {
        pair: MatchLeft(model.config.model.ffn_hidden_size, plan.widths[pair], model.config.match_left)
        for pair, model in plan.models.items()
        if model.config.match_left is not None
    }
