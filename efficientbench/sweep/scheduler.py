"""Run the loop of a sweep: claim queued runs, start and watch them, and write how they ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.config.quantization import Quantization
from efficientbench.launchers.processes.failure import Failure, ends_at_once
from efficientbench.metrics.records.generation.generation import read_generation
from efficientbench.running.failures import write_failure
from efficientbench.running.output_folder import OutputFolder
from efficientbench.sweep.child import Child
from efficientbench.sweep.machine import Machine, slot_environment, slots
from efficientbench.sweep.progress import Display, Running, progress_of
from efficientbench.sweep.queue import STOPPED, Claim, Queue, State, failure_of
from efficientbench.sweep.task import Task

POLL_S = 0.2
"""Seconds between two polls. The runs are measured meanwhile, so that the sweep must take no CPU time."""
ENDING_S = 15.0
"""Seconds for a run to end by itself, after the `faults.stop_grace_s` in which its ranks save."""


@dataclass
class _Attempt:
    """One run that this sweep has started."""

    task: Task
    state: State
    child: Child
    claims: tuple[Claim, Claim]
    generating: bool
    """Whether the run measures generation with the trained model; else it trains."""
    timed_out: bool = False
    kill_at_s: float | None = None
    """Monotonic time at which the run is killed; None unless it was asked to stop."""

    @property
    def stop_grace_s(self) -> float:
        """Seconds that the run has to save and end."""
        return self.task.stop_grace_s + ENDING_S


@dataclass(frozen=True)
class Manner:
    """How the runs of a sweep are done."""

    machine: Machine
    jobs: int | None = None
    """Number of runs at once; None: as many as the devices allow."""
    time_limit_s: float | None = None
    """Time limit of one run in seconds, set-up included; None: no limit."""
    retry_failed: bool = False
    """Whether runs that failed in an earlier call are retried."""
    retry_smaller: bool = False
    """Whether a run that is out of memory is retried with a smaller micro-batch."""

    def is_trained(self, task: Task) -> bool:
        """Return whether the task's folder has the complete record of its configuration on this machine."""
        return task.is_trained(self.machine.name, self.retry_smaller)

    def is_complete(self, task: Task) -> bool:
        """Return whether it has that record, and the generation that the task asks for."""
        return self.is_trained(task) and (not task.generates or has_generated(task.folder, task.widths))


class Scheduler:
    """Starts and watches the runs of a queue that fit on this machine."""

    def __init__(self, queue: Queue, tasks: Sequence[Task], manner: Manner, host: str, display: Display) -> None:
        """Take the slots of the machine.

        Args:
            queue: the suite's queue.
            tasks: the tasks to do, here or by another sweep.
            manner: the machine that runs them, and how.
            host: the machine's name.
            display: the display that prints the runs' events.
        """
        self._queue = queue
        self._manner = manner
        self._host = host
        self._display = display
        self._places = slots(manner.machine, manner.jobs)
        self._open = list(tasks)
        self._running: list[_Attempt] = []

    def run(self, signals: list[int]) -> None:
        """Run the tasks; return when none is left, or when the running tasks have ended after a signal.

        The first signal that appears in `signals` asks the runs to save and end, a further Ctrl-C kills them.
        """
        asked = False
        try:
            while self._running or (self._open and not signals):
                if signals and not asked:
                    asked = True
                    longest_s = max((attempt.stop_grace_s for attempt in self._running), default=ENDING_S)
                    self._display.print(
                        f"{signal.Signals(signals[0]).name}: no further run starts; the running ones have "
                        f"{longest_s:.0f} s to save and end; Ctrl-C from now on kills them at once"
                    )
                    for attempt in self._running:
                        self._stop(attempt)
                if ends_at_once(signals):
                    self._kill_all()
                self._watch()
                if not signals:
                    self._start_what_fits()
                if self._display.due:
                    self._display.show([self._row(attempt) for attempt in self._running], len(self._open))
                time.sleep(POLL_S)
        finally:
            self._end_all(signals)

    def _start_what_fits(self) -> None:
        taken = len(self._places) + 1
        for task in list(self._open):
            if task.slots >= taken or self._waits(task):
                continue
            place = self._queue.claim_places(self._host, self._places, task.slots)
            if place is None:
                taken = task.slots
                continue
            claim = self._queue.claim(task.id)
            if claim is None:
                # Another sweep runs it: its end is read from the queue once the claim is free.
                place.release()
                continue
            state = self._queue.read(task.id)
            # Another sweep may have ended it meanwhile; if that sweep was stopped or killed, this one runs it.
            if state is None or state.configuration != task.configuration or state.state in ("done", "failed"):
                self._open.remove(task)
                if state is not None and state.configuration != task.configuration:
                    self._display.print(f"{task.id}: skipped: another sweep queued it with another configuration")
                elif state is not None:
                    self._display.ended(state, elsewhere=True)
                place.release()
                claim.release()
                continue
            self._open.remove(task)
            why = self._refused_after(task)
            if why is not None:
                refused = replace(state, state="refused", kind=why.kind, reason=why.reason, pid=None)
                self._queue.write(refused)
                write_failure(task.folder, why)
                self._display.ended(refused)
                place.release()
                claim.release()
                continue
            self._start(task, state, (claim, place))

    def _waits(self, task: Task) -> bool:
        """Return whether a run that must be done before the task's is running or still to be started, here or there."""
        left = {each.id for each in self._open} | {attempt.task.id for attempt in self._running}
        return not left.isdisjoint(task.after)

    def _refused_after(self, task: Task) -> Failure | None:
        """Return why the task cannot start, since a run before it is not done; None where all are."""
        for name in task.after:
            state = self._queue.read(name)
            if state is None or state.state != "done":
                reason = "was not run" if state is None else f"{state.state}: {state.reason}"
                return Failure("mistake", f"{name}, which must be done before it, {reason}")
        return None

    def _start(self, task: Task, state: State, claims: tuple[Claim, Claim]) -> None:
        generating = task.generates and self._manner.is_trained(task)
        arguments, ranks = (task.generation_arguments, 1) if generating else (task.arguments, task.ranks)
        environment = slot_environment(self._manner.machine, claims[1].places, self._manner.jobs, ranks, os.environ)
        planned = task.planned()
        kept_open = [descriptor for claim in claims for descriptor in claim.descriptors]
        try:
            child = Child(arguments, environment, self._queue.log(task.id), kept_open)
        except OSError as error:
            raise ConfigError(f"{task.id} cannot be started: {error}") from None
        state = replace(
            state,
            state="running",
            command=["efficientbench", *arguments],
            attempts=state.attempts + 1,
            kind=None,
            reason=None,
            micro_batch_size=planned.micro_batch_size if task.asked and planned is not None else None,
            started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            duration_s=None,
            host=self._host,
            pid=child.pid,
        )
        self._running.append(_Attempt(task, state, child, claims, generating))
        self._queue.write(state)
        self._display.started(state)

    def _watch(self) -> None:
        for attempt in list(self._running):
            child, limit_s = attempt.child, self._manner.time_limit_s
            exit_code = child.exit_code()
            if exit_code is not None:
                self._running.remove(attempt)
                self._end(attempt, exit_code)
            elif attempt.kill_at_s is not None:
                if time.monotonic() > attempt.kill_at_s:
                    child.kill()
            elif limit_s is not None and child.elapsed_s() > limit_s:
                attempt.timed_out = True
                self._stop(attempt)

    def _stop(self, attempt: _Attempt) -> None:
        attempt.kill_at_s = time.monotonic() + attempt.stop_grace_s
        attempt.child.stop()

    def _end_all(self, signals: list[int]) -> None:
        """Let the running runs save and end, unless Ctrl-C comes after another signal.

        Runs are still running here only if an error ends the sweep itself, such as a full disk.
        """
        for attempt in self._running:
            self._stop(attempt)
        while not ends_at_once(signals) and any(
            attempt.child.exit_code() is None and time.monotonic() < (attempt.kill_at_s or 0)
            for attempt in self._running
        ):
            time.sleep(POLL_S)
        self._kill_all()

    def _kill_all(self) -> None:
        for attempt in list(self._running):
            attempt.child.kill()

    def _end(self, attempt: _Attempt, exit_code: int) -> None:
        """Write how a run ended; or start its next attempt: generation, or training with a smaller micro-batch."""
        goes_on = exit_code == 0 and not attempt.generating and attempt.kill_at_s is None
        if goes_on and attempt.task.generates and self._manner.is_trained(attempt.task):
            self._display.print(f"{attempt.task.id}: trained; generation is measured")
            self._start(attempt.task, attempt.state, attempt.claims)
            return
        failure = self._failure(attempt, exit_code)
        stopped = failure is not None and failure.kind == "stopped"
        if failure is not None and not stopped:
            write_failure(attempt.task.folder, failure)
        out_of_memory = failure is not None and failure.kind == "out_of_memory"
        retried = self._manner.retry_smaller and out_of_memory and not attempt.generating
        again = attempt.task.smaller(self._manner.machine) if retried else None
        if again is not None:
            self._display.print(f"{again.id}: out of memory; again with {' '.join(again.arguments[-2:-1])}")
            self._start(again, attempt.state, attempt.claims)
            return
        state = replace(
            attempt.state,
            state="done" if failure is None else "stopped" if stopped else "failed",
            kind=failure.kind if failure else None,
            reason=failure.reason if failure else None,
            duration_s=round(attempt.child.elapsed_s(), 1),
            pid=None,
        )
        self._queue.write(state)
        for claim in attempt.claims:
            claim.release()
        self._display.ended(state)

    def _failure(self, attempt: _Attempt, exit_code: int) -> Failure | None:
        """Return why the run is not done; None if it is done."""
        task, child = attempt.task, attempt.child
        if exit_code == 0 and self._manner.is_complete(task):
            return None
        if attempt.kill_at_s is not None and not attempt.timed_out:
            return STOPPED
        reached = None if attempt.generating else progress_of(task.folder, child.begin_time_s)
        if attempt.timed_out:
            after = f" after step {reached.step}" if reached else ", before the first step"
            after = " while generation was measured" if attempt.generating else after
            reason = f"the time limit of {self._manner.time_limit_s:g} s was reached{after}"
            return Failure("time_limit", reason, step=reached.step if reached else None)
        return failure_of(task.folder, exit_code, self._queue.log(task.id), child.begin_time_s)

    def _row(self, attempt: _Attempt) -> Running:
        reached = progress_of(attempt.task.folder, attempt.child.begin_time_s)
        return Running(attempt.task.id, attempt.child.elapsed_s(), reached, attempt.task.steps)


def has_generated(folder: OutputFolder, widths: Sequence[Quantization] = ()) -> bool:
    """Return whether a run's folder has a completed measurement of generation, in which at least one row succeeded.

    `widths`: of weights, of which each has one too.
    """
    folders = [folder, *map(folder.quantized, widths)]
    try:
        made = [read_generation(each.generation) for each in folders]
    except MetricsError:
        return False
    return all(each.status == "completed" and any(row.failure is None for row in each.rows) for each in made)
