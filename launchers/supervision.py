"""Stays with the ranks of a node until the last has ended, and finds out why they ended."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

from launchers.failure import Failure
from launchers.memory_killer import memory_kills
from launchers.worker_process import WorkerProcess

POLL_S = 0.05

USER_MISTAKE = 2
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}
STOPPED_STATUSES = {0, 130, 143, -signal.SIGINT, -signal.SIGTERM}


class Supervision:
    """Waits for the ranks of this node, and ends them together when one fails or somebody asks."""

    def __init__(
        self,
        workers: list[WorkerProcess],
        signals: Sequence[int],
        node: int,
        stop_grace_s: float,
        failure_grace_s: float,
    ) -> None:
        """
        Args:
            workers: the ranks, to which a started one may still be added.
            signals: the stop signals that this process has received, filled as they come.
            node: this node's number.
            stop_grace_s: how long ranks that were asked to stop may take.
            failure_grace_s: how long the others may take once one has failed.
        """
        self._workers = workers
        self._signals = signals
        self._node = node
        self._stop_grace_s, self._failure_grace_s = stop_grace_s, failure_grace_s
        self._memory_kills = memory_kills()
        self._deadline_s: float | None = None
        self._stop: int | None = None
        """The signal that ends the run, wherever it was received."""
        self._failure: Failure | None = None
        self._killed: list[WorkerProcess] = []

    def run(self) -> Failure | None:
        """Returns once no rank runs: None where all have done their work, else why they have not."""
        while any(worker.exit_code() is None for worker in self._workers):
            self._look_for_stop()
            self._look_for_failure()
            if self._is_overdue():
                self._kill_the_rest()
                break
            time.sleep(POLL_S)
        self._look_for_stop()
        self._look_for_failure()
        return self._conclusion()

    def _is_overdue(self) -> bool:
        """Whether who still runs has had its time, or somebody presses Ctrl-C again.

        A further SIGTERM says nothing: schedulers send it to a job and to its processes.
        """
        return signal.SIGINT in self._signals[1:] or (
            self._deadline_s is not None and time.monotonic() > self._deadline_s
        )

    def _look_for_stop(self) -> None:
        if self._stop is not None:
            return
        if self._signals:
            self._stop_all(self._signals[0])
            return
        codes = {worker.exit_code() for worker in self._workers if worker.report() is None}
        for number, code in STOPPED.items():
            if code in codes and self._failure is None:
                # Some process of the run was asked, and all its ranks have agreed to stop after the same step.
                self._stop_all(number)
                return

    def _stop_all(self, number: int) -> None:
        self._stop = number
        say(
            f"{signal.Signals(number).name}: the ranks have {self._stop_grace_s:.0f} s to save and end; "
            "Ctrl-C from now on ends them at once"
        )
        self._shorten_deadline(self._stop_grace_s)
        for worker in self._workers:
            # Not SIGINT: a rank that is still starting would answer that with a traceback.
            worker.send(signal.SIGTERM)

    def _look_for_failure(self) -> None:
        if self._failure is not None:
            return
        fine = STOPPED_STATUSES if self._stop is not None else {0}
        ended = [worker for worker in self._workers if worker.exit_code() not in (None, *fine) and not worker.killed]
        if not ended:
            return
        # A rank may report its error and be slower to end than those who lost it.
        reported = [worker for worker in self._workers if worker.report() is not None and worker not in ended]
        ran_out = self._memory_ran_out()
        self._failure = min((worker.failure(self._node, ran_out) for worker in ended + reported), key=Failure.order)
        if self._stop is None:
            for worker in self._workers:
                worker.send(signal.SIGTERM)
        self._shorten_deadline(self._failure_grace_s)

    def _memory_ran_out(self) -> bool:
        before, now = self._memory_kills, memory_kills()
        return before is not None and now is not None and now > before

    def _shorten_deadline(self, grace_s: float) -> None:
        deadline_s = time.monotonic() + grace_s
        self._deadline_s = deadline_s if self._deadline_s is None else min(self._deadline_s, deadline_s)

    def _kill_the_rest(self) -> None:
        self._killed = [worker for worker in self._workers if worker.exit_code() is None]
        end_all(self._killed)
        if self._stop is not None and self._killed:
            say(f"killed before they had ended: {_ranks(self._killed)}")

    def _conclusion(self) -> Failure | None:
        failure = self._failure
        if failure is not None and failure.exit_code == USER_MISTAKE:
            # What is wrong with the input is wrong on every rank.
            say(f"error: {failure.reason}")
        elif failure is not None:
            say(f"error: rank {failure.rank}: {failure.reason}")
        if self._stop is not None:
            stopped = f"{signal.Signals(self._stop).name}: the run was asked to stop"
            if self._killed:
                stopped += f"; killed before they had ended: {_ranks(self._killed)}"
            if failure is not None:
                stopped += f"; rank {failure.rank}: {failure.reason}"
            return Failure("stopped", None, stopped, STOPPED[signal.Signals(self._stop)], node=self._node)
        if failure is None:
            return None
        wanted = failure.exit_code if failure.exit_code in (USER_MISTAKE, *STOPPED.values()) else 1
        return Failure(**{**vars(failure), "exit_code": wanted})


def end_all(workers: Sequence[WorkerProcess]) -> None:
    """Kill these ranks and all that they have started."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.wait_killed()


def say(message: str) -> None:
    """Print a line to stderr."""
    # On a terminal rank 0's live display may stand in the line.
    erase_line = "\r\x1b[2K" if sys.stderr.isatty() else ""
    print(f"{erase_line}{message}", file=sys.stderr, flush=True)


def _ranks(workers: list[WorkerProcess]) -> str:
    return ("rank " if len(workers) == 1 else "ranks ") + ", ".join(str(worker.rank) for worker in workers)
