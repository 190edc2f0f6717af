"""Do a sweep, from its request to its report."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.basics.language import in_users_language
from efficientbench.config.load import check_is_no_file
from efficientbench.launchers.processes.failure import STOP_EXIT_CODES
from efficientbench.launchers.processes.launch import received_signals
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.metrics.analysis.needed import what_repeats_tell
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import RunRecord
from efficientbench.running.failures import write_failure
from efficientbench.sweep.dry_run import print_dry_run
from efficientbench.sweep.machine import Machine, find_machine, parallel_runs, slots
from efficientbench.sweep.progress import Display
from efficientbench.sweep.queue import Queue, State
from efficientbench.sweep.scheduler import Manner, Scheduler
from efficientbench.sweep.selection import Request, names_tunings
from efficientbench.sweep.task import Task, take_turns
from efficientbench.sweep.tasks import build_tasks
from efficientbench.sweep.tuning_tasks import tuning_tasks

NEXT_CALL = {
    "failed": "with --retry-failed tries them again",
    "refused": "tries them where they can run",
    "stopped": "resumes them",
    "queued": "starts them",
}
"""State of runs after a sweep → what the same command does with them."""


def sweep(
    request: Request,
    jobs: str = "auto",
    time_limit_s: float | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    cluster: Machine | None = None,
    price_per_hour: float | None = None,
) -> int:
    """Do the runs that a sweep still lacks, and report the suite.

    Args:
        request: the runs.
        jobs: number of runs at once, or `auto`.
        time_limit_s: time limit of one run in seconds; None: no limit.
        retry_failed: whether runs that failed in an earlier call are retried.
        dry_run: whether to print the plan and run nothing.
        cluster: with `dry_run`, the machines to plan for instead of this one.
        price_per_hour: with `dry_run`, of one device; None: no money.

    Returns:
        0 when every run is done, 1 when some failed or cannot run, 130 after Ctrl-C, 143 after SIGTERM,
        129 after SIGHUP.

    Raises:
        ConfigError: the request is wrong, or the suite's folder cannot be written.
    """
    tunes = names_tunings(request)
    tasks: Sequence[Task]
    machine = cluster or find_machine(device_of(request))
    at_once = parallel_runs(jobs, machine)
    if tunes:
        tasks = tuning_tasks(request, machine, at_once, cluster is not None)
    else:
        tasks = build_tasks(request, machine, at_once, dry_run)
    manner = Manner(machine, at_once, time_limit_s, retry_failed, request.retry_smaller)
    suite = _suite(tasks)
    check_is_no_file(suite)
    queue = Queue(suite)
    if dry_run:
        states = [planned_state(task, queue, manner) for task in tasks]
        _print_plan(tasks, states, machine, at_once, request, cluster is not None, price_per_hour)
        return 0
    if request.repeat is not None:
        queue.make()
        tasks = take_turns(tasks, queue.folder)
    stopped = run_tasks(tasks, suite, manner)
    _report(suite)
    all_done = tell_ends(tasks, queue)
    return stopped or (0 if all_done else 1)


def run_tasks(tasks: Sequence[Task], suite: Path, manner: Manner) -> int:
    """Do what is left of some tasks, in their order, and print how each ends.

    Returns:
        0, or the exit code for the signal that stopped them: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

    Raises:
        ConfigError: the suite's folder cannot be written, or another sweep runs one in another configuration.
    """
    queue = Queue(suite)
    queue.make()
    display = Display(Console(highlight=False), len(tasks))
    where = f"{suite} on {manner.machine.name}"
    display.print(f"{number_of(len(tasks), 'run')} in {where}; the queue: {queue.folder / 'queue'}")
    with received_signals() as signals:
        try:
            left = _enter(tasks, queue, manner, display)
            host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
            Scheduler(queue, left, manner, host, display).run(signals)
        finally:
            display.close()
    return STOP_EXIT_CODES[signal.Signals(signals[0])] if signals else 0


def tell_ends(tasks: Sequence[Task], queue: Queue) -> bool:
    """Print what the same command does with runs that are not done; return whether all are done."""
    ends = [_end_of(task, queue.read(task.id)) for task in tasks]
    for name, effect in NEXT_CALL.items():
        if count := ends.count(name):
            print_stderr(f"{name}: {count} of {len(tasks)}; the same command {effect}")
    if "failed" in ends:
        print_stderr(f"what they printed: {queue.folder / 'log'}")
    return all(end == "done" for end in ends)


def _print_plan(
    tasks: Sequence[Task],
    states: Sequence[str],
    machine: Machine,
    at_once: int | None,
    request: Request,
    elsewhere: bool,
    price_per_hour: float | None,
) -> None:
    """Print the runs with their states and estimates; `elsewhere`: the machine is not this one."""
    records = records_in(_suite(tasks))
    most = max(1, len(slots(machine, at_once)) // max(task.slots for task in tasks))
    cores = usable_cores() / most
    estimates = [None if task.refused else task.estimate(machine, records, cores) for task in tasks]
    told: list[str] = []
    if request.repeat is not None:
        here = [record for record in records if record.device_name == machine.name]
        told = what_repeats_tell(here, request.repeat, len(tasks) // request.repeat, str(_suite(tasks)))
    print_dry_run(tasks, states, estimates, most, told, machine, price_per_hour)
    if elsewhere:
        nodes = number_of(machine.nodes, "node")
        print(in_users_language(f"planned for {nodes} of {len(machine.devices)} × {machine.name}"))
    if request.generate:
        print(in_users_language("generation with each trained model: time and energy are not estimated"))


def records_in(suite: Path) -> list[RunRecord]:
    """Return the records in the suite's folder; none before it exists."""
    try:
        return load_records(suite)[0]
    except MetricsError:
        return []


def _end_of(task: Task, state: State | None) -> str:
    """Return the run's state; `queued` if the state on disk belongs to another configuration."""
    return state.state if state is not None and state.configuration == task.configuration else "queued"


def device_of(request: Request) -> str:
    """Return the device type that the overrides name, else `auto`."""
    named = [each.removeprefix("device=") for each in request.overrides if each.startswith("device=")]
    if any(axis.startswith("device=") for axis in request.axes):
        raise ConfigError("--set device: a sweep has one device type: give it without --set, as device=TYPE")
    return named[-1] if named else "auto"


def _suite(tasks: Sequence[Task]) -> Path:
    """Return the suite's folder, which contains all runs' folders."""
    first = tasks[0]
    return first.folder.path.parent if first.id == first.folder.path.name else first.folder.path.parent.parent


def planned_state(task: Task, queue: Queue, manner: Manner) -> str:
    """Return the run's state as the sweep would begin; `trained` where only its generation is left to do."""
    state = _next_state(task, queue.read(task.id), manner)
    return "trained" if state == "queued" and manner.is_trained(task) else state


def _next_state(task: Task, state: State | None, manner: Manner) -> str:
    """Return the run's state as the sweep begins: done, failed, refused or queued."""
    if manner.is_complete(task):
        return "done"
    if task.refused is not None:
        return "refused"
    failed = state is not None and state.state == "failed" and state.configuration == task.configuration
    return "failed" if failed and not manner.retry_failed else "queued"


def _enter(tasks: Sequence[Task], queue: Queue, manner: Manner, display: Display) -> list[Task]:
    """Enter every run into the queue; return the tasks to do, here or by another sweep.

    Raises:
        ConfigError: another sweep runs one of the tasks in another configuration.
    """
    left = []
    with queue.changing():
        for task in tasks:
            state, claim = queue.read(task.id), queue.claim(task.id)
            if claim is None:
                if state is not None and state.configuration != task.configuration:
                    raise ConfigError(
                        f"{task.id}: another sweep (process {state.pid} on {state.host}) runs it in another "
                        "configuration: wait for it, or choose another folder with output=FOLDER"
                    )
                left.append(task)
                continue
            try:
                entered = _entered(task, state, _next_state(task, state, manner))
                if entered != state:
                    queue.write(entered)
                if entered.state == "done":
                    # A sweep with another configuration of this run may have left the file; a complete run has none.
                    task.folder.failure.unlink(missing_ok=True)
            finally:
                claim.release()
            if entered.state == "queued":
                left.append(task)
                continue
            if task.refused is not None and entered.state == "refused":
                write_failure(task.folder, task.refused)
            display.kept(entered)
    return left


def _entered(task: Task, before: State | None, name: str) -> State:
    same = before is not None and before.configuration == task.configuration
    if before is not None and same and before.state == name and name != "refused":
        return before
    attempts = before.attempts if before is not None and same else 0
    return State(
        id=task.id,
        state=name,  # type: ignore[arg-type]
        configuration=task.configuration,
        command=["efficientbench", *task.arguments],
        folder=str(task.folder.path),
        attempts=attempts,
        kind=task.refused.kind if task.refused else None,
        reason=task.refused.reason if task.refused else None,
    )


def _report(suite: Path) -> None:
    """Write and print the suite's report; print only the failures where no run has a record yet."""
    from efficientbench.metrics.report.build import build_report, print_beside
    from efficientbench.metrics.report.headline import print_results
    from efficientbench.metrics.report.sections.failures import load_failures, print_failures

    try:
        made = build_report(suite)
    except MetricsError as error:
        failures, damaged = load_failures(suite)
        print_failures(failures, Console())
        for line in damaged:
            print_stderr(f"warning: {line}")
        print_stderr(f"no report: {error}")
        return
    print_results(made.records, Console())
    print_beside(made, Console())
