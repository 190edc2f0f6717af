"""Supervise the ranks of a node until the last has ended, and find out why they ended."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, Protocol

from efficientbench.basics.language import in_users_language
from efficientbench.launchers.network.node_link import NodeLink, content
from efficientbench.launchers.processes.failure import STOP_EXIT_CODES, USER_MISTAKE, Failure, ends_at_once
from efficientbench.launchers.processes.hang import HangDetector
from efficientbench.launchers.processes.worker_process import WorkerProcess, memory_kills

POLL_S = 0.05
SETTLE_S = 1.0
"""Seconds that nodes wait for each other's report of the same failure."""
FAILURE_GRACE_S = 5.0
"""Seconds that the other ranks have to end after one has failed: they only wait for it in vain."""
STACK_S = 0.5
"""Seconds that ranks that hang have to log their stacks."""

FINE_AFTER_A_STOP = {0, *STOP_EXIT_CODES.values(), *(-number for number in STOP_EXIT_CODES)}
"""Exit codes of ranks that ended as a stop signal asked them to."""


class Limits(Protocol):
    """Time limits of ranks in seconds, as `faults` of a configuration has them."""

    @property
    def stop_grace_s(self) -> float:
        """Seconds from a stop signal until all ranks must have saved and ended."""

    @property
    def hang_limit_s(self) -> float:
        """Seconds that all ranks together may go without progress."""


class Supervision:
    """Waits for the ranks of this node, and ends them together when one fails or a stop is asked for, on any node."""

    def __init__(
        self, workers: list[WorkerProcess], signals: Sequence[int], limits: Limits, link: NodeLink, log_folder: Path
    ) -> None:
        """Supervise ranks that have been started.

        Args:
            workers: the ranks of this node.
            signals: the stop signals that this process has received, appended as they arrive.
            limits: the time limits.
            link: the link to the launchers of the other nodes.
            log_folder: the folder of the ranks' logs.
        """
        self._workers, self._signals = workers, signals
        self._limits, self._link, self._log_folder = limits, link, log_folder
        self._memory_kills = memory_kills()
        self._deadline_s: float | None = None
        self._stop: int | None = None
        """The signal that ends the run, on whichever node it was received."""
        self._failure: Failure | None = None
        """The cause, once it is settled."""
        self._remote_failures: list[Failure] = []
        self._sent: Failure | None = None
        """The failure of this node's ranks that it has sent to the other nodes."""
        self._settled_s: float | None = None
        self._killed: list[WorkerProcess] = []
        self._hang = HangDetector(workers, link, limits.hang_limit_s)

    def run(self) -> Failure | None:
        """Wait until no rank runs; return None where all have done their work, else the failure."""
        while True:
            ended = all(worker.exit_code() is not None for worker in self._workers)
            self._read_messages()
            self._look_for_hang()
            self._look_for_stop()
            self._look_for_failure()
            if ended and not self._is_settling():
                break
            if self._is_overdue() and not ended:
                self._kill_the_rest()
                # Do not wait for a rank that the kernel cannot end, as in a driver that hangs.
                self._settled_s = time.monotonic() if self._settled_s is not None else None
                self._look_for_stop()
                self._look_for_failure()
                break
            time.sleep(POLL_S)
        return self._conclusion()

    def _is_overdue(self) -> bool:
        """Return whether the ranks' time is over, or the user has pressed Ctrl-C again."""
        return ends_at_once(self._signals) or (self._deadline_s is not None and time.monotonic() > self._deadline_s)

    def _read_messages(self) -> None:
        for message in self._link.receive():
            kind, node = message["kind"], message["node"]
            if kind == "failure" and (failure := content(message, "failure", Failure)) is not None:
                self._remote_failures.append(failure)
            elif kind == "stop" and self._stop is None:
                number = content(message, "signal", Literal[tuple(map(int, STOP_EXIT_CODES))])
                if number is not None:
                    self._stop_all(number, f" on node {node}")
            elif kind == "trouble":
                reason = f"node {node} could not start its ranks: {content(message, 'reason', str)}"
                self._remote_failures.append(Failure("crash", reason, node=node))
            elif kind == "gone" and self._stop is None:
                reason = f"node {node} is gone: its launcher ended without a reason"
                self._remote_failures.append(Failure("lost_rank", reason, node=node, silent=True))
            else:
                self._hang.receive(message)

    def _look_for_hang(self) -> None:
        hung = self._hang.look() if self._failure is None and self._stop is None else None
        if hung is not None:
            self._link.send("failure", failure=asdict(hung))
            self._remote_failures.append(hung)

    def _look_for_stop(self) -> None:
        if self._stop is not None:
            return
        if self._signals:
            self._stop_all(self._signals[0])
            return
        # Without the ranks that were asked to end for another's failure.
        others = [worker for worker in self._workers if worker.report() is None and not worker.asked_to_end]
        codes = {worker.exit_code() for worker in others}
        for number, code in STOP_EXIT_CODES.items():
            if code in codes and self._failure is None:
                # Some process of the run got a stop signal, and all ranks have agreed to stop after the same step.
                self._stop_all(number)
                return

    def _stop_all(self, number: int, where: str = "") -> None:
        self._stop = number
        print_stderr(
            f"{signal.Signals(number).name}{where}: the ranks have {self._limits.stop_grace_s:.0f} s to save and end; "
            "Ctrl-C from now on kills them at once"
        )
        if not where:
            self._link.send("stop", signal=number)
        self._shorten_deadline(self._limits.stop_grace_s)
        for worker in self._workers:
            # Not SIGINT: a rank that is still starting would print a traceback.
            worker.send(signal.SIGTERM)

    def _look_for_failure(self) -> None:
        if self._failure is not None:
            return
        failures = [*self._local_failures(), *self._remote_failures]
        if not failures:
            return
        if self._settled_s is None:
            # The cause may have been on another node, whose report is on its way.
            self._settled_s = time.monotonic() + (SETTLE_S if self._link.nodes > 1 else 0.0)
            if self._stop is None:
                for worker in self._workers:
                    worker.send(signal.SIGTERM)
            self._shorten_deadline(FAILURE_GRACE_S)
        first = min(failures, key=Failure.order)
        if first.kind == "hung":
            # Such ranks cannot end by themselves; SIGUSR1 makes them log their stacks.
            for worker in self._workers:
                worker.send(signal.SIGUSR1)
            self._settled_s = time.monotonic()
            self._shorten_deadline(STACK_S)
        if time.monotonic() >= self._settled_s:
            self._failure = first

    def _is_settling(self) -> bool:
        return self._settled_s is not None and self._failure is None

    def _local_failures(self) -> list[Failure]:
        """Return why ranks of this node have failed, and send the first failure to the other nodes."""
        fine = FINE_AFTER_A_STOP if self._stop is not None else {0}
        ended = [worker for worker in self._workers if worker.exit_code() not in (None, *fine)]
        ended = [worker for worker in ended if not worker.killed and not worker.obeyed()]
        if not ended:
            return []
        # A rank may report its error and be slower to end than the ranks that lost it.
        reported = [worker for worker in self._workers if worker.report() is not None and worker not in ended]
        ran_out = self._memory_ran_out()
        failures = [worker.failure(self._link.node, ran_out) for worker in ended + reported]
        first = min(failures, key=Failure.order)
        if first != self._sent:
            self._sent = first
            self._link.send("failure", failure=asdict(first))
        return failures

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
            print_stderr(f"killed before they had ended: {_ranks(self._killed)}")

    def _conclusion(self) -> Failure | None:
        failure = self._failure
        if failure is not None:
            print_stderr(f"error: {self._named(failure)}")
            if failure.kind == "hung":
                print_stderr(f"where each rank was: {self._log_folder}")
        if self._stop is not None:
            stopped = f"{signal.Signals(self._stop).name}: the run was asked to stop"
            if self._killed:
                stopped += f"; killed before they had ended: {_ranks(self._killed)}"
            if failure is not None:
                stopped += f"; {self._named(failure)}"
            exit_code = STOP_EXIT_CODES[signal.Signals(self._stop)]
            return Failure("stopped", stopped, exit_code, node=self._link.node)
        if failure is None:
            return None
        wanted = failure.exit_code if failure.exit_code in (USER_MISTAKE, *STOP_EXIT_CODES.values()) else 1
        return replace(failure, exit_code=wanted)

    def _named(self, failure: Failure) -> str:
        """Return the reason with its rank, except for a user's mistake, which is the same on every rank."""
        if failure.rank is None or failure.exit_code == USER_MISTAKE:
            return failure.reason
        where = f" on node {failure.node}" if self._link.nodes > 1 else ""
        return f"rank {failure.rank}{where}: {failure.reason}"


def end_all(workers: Sequence[WorkerProcess]) -> None:
    """Kill these ranks and all processes that they have started, and wait for their end."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.wait_killed()


def print_stderr(message: str) -> None:
    """Print a message to stderr in the user's language, without control characters: it may come from another node."""
    # On a terminal rank 0's live display may occupy the line.
    erase_line = "\r\x1b[2K" if sys.stderr.isatty() else ""
    printable = "".join(
        each if each.isprintable() or each in "\n\t" else "\ufffd" for each in in_users_language(message)
    )
    print(f"{erase_line}{printable}", file=sys.stderr, flush=True)


def _ranks(workers: list[WorkerProcess]) -> str:
    return ("rank " if len(workers) == 1 else "ranks ") + ", ".join(str(worker.rank) for worker in workers)
