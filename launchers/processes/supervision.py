"""Stays with the ranks of a node until the last has ended, and finds out why they ended."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.processes.failure import Failure, failure_from, told
from efficientbench.launchers.processes.hang_talk import HangTalk
from efficientbench.launchers.processes.memory_killer import memory_kills
from efficientbench.launchers.processes.worker_process import WorkerProcess

POLL_S = 0.05
SETTLE_S = 1.0
"""For so long nodes wait for each other's word about the same failure."""
STACK_S = 0.5
"""What ranks that hang get to write down where they are."""

USER_MISTAKE = 2
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}
STOPPED_STATUSES = {0, 130, 143, -signal.SIGINT, -signal.SIGTERM}


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    stop_grace_s: float
    """Ranks that were asked to stop, until they have saved and ended."""
    failure_grace_s: float
    """The other ranks, once one has failed."""
    hang_s: float | None
    """All ranks of a node without any progress; None: as long as they like."""


class Supervision:
    """Waits for the ranks of this node, and ends them together when one fails or somebody asks, here or elsewhere."""

    def __init__(
        self, workers: list[WorkerProcess], signals: Sequence[int], limits: Limits, link: NodeLink, log_folder: Path
    ) -> None:
        """
        Args:
            workers: the ranks of this node.
            signals: the stop signals that this process has received, filled as they come.
            limits: how long things may take.
            link: to the launchers of the other nodes.
            log_folder: where people find what the ranks have said.
        """
        self._workers, self._signals = workers, signals
        self._limits, self._link, self._log_folder = limits, link, log_folder
        self._memory_kills = memory_kills()
        self._deadline_s: float | None = None
        self._stop: int | None = None
        """The signal that ends the run, wherever it was received."""
        self._failure: Failure | None = None
        """The cause, once it is settled."""
        self._elsewhere: list[Failure] = []
        self._told: Failure | None = None
        """What the other nodes were told of this one's ranks."""
        self._settled_s: float | None = None
        self._killed: list[WorkerProcess] = []
        self._hang = HangTalk(workers, link, limits.hang_s)

    def run(self) -> Failure | None:
        """Returns once no rank runs: None where all have done their work, else why they have not."""
        while True:
            ended = all(worker.exit_code() is not None for worker in self._workers)
            self._listen()
            self._look_for_stop()
            self._look_for_failure()
            if ended and not self._is_settling():
                break
            if self._is_overdue() and not ended:
                self._kill_the_rest()
                # One that the kernel cannot end, as in a driver that hangs, is not waited for.
                self._settled_s = time.monotonic() if self._settled_s is not None else None
                self._look_for_stop()
                self._look_for_failure()
                break
            time.sleep(POLL_S)
        return self._conclusion()

    def _is_overdue(self) -> bool:
        """Whether who still runs has had its time, or somebody presses Ctrl-C again.

        A further SIGTERM says nothing: schedulers send it to a job and to its processes.
        """
        return signal.SIGINT in self._signals[1:] or (
            self._deadline_s is not None and time.monotonic() > self._deadline_s
        )

    def _listen(self) -> None:
        """What the other nodes tell, and whether the ranks of all get on."""
        for message in self._link.receive():
            kind, node = message["kind"], message["node"]
            if kind == "failure":
                self._elsewhere.append(failure_from(message))
            elif kind == "stop" and self._stop is None:
                self._stop_all(int(message["signal"]), f" on node {node}")
            elif kind == "trouble":
                reason = f"node {node} could not start its ranks: {message.get('reason')}"
                self._elsewhere.append(Failure("crash", None, reason, 1, None, node, time.time()))
            elif kind == "gone" and self._stop is None:
                reason = f"node {node} is gone: its launcher ended without a word"
                self._elsewhere.append(Failure("lost_rank", None, reason, 1, None, node, time.time(), silent=True))
            else:
                self._hang.hear(message)
        hung = self._hang.look() if self._failure is None and self._stop is None else None
        if hung is not None:
            self._link.send("failure", **told(hung))
            self._elsewhere.append(hung)

    def _look_for_stop(self) -> None:
        if self._stop is not None:
            return
        if self._signals:
            self._stop_all(self._signals[0])
            return
        # Not of those that were asked to end for another's failure.
        others = [worker for worker in self._workers if worker.report() is None and not worker.asked_to_end]
        codes = {worker.exit_code() for worker in others}
        for number, code in STOPPED.items():
            if code in codes and self._failure is None:
                # Some process of the run was asked, and all its ranks have agreed to stop after the same step.
                self._stop_all(number)
                return

    def _stop_all(self, number: int, where: str = "") -> None:
        self._stop = number
        say(
            f"{signal.Signals(number).name}{where}: the ranks have {self._limits.stop_grace_s:.0f} s to save and end; "
            "Ctrl-C from now on ends them at once"
        )
        if not where:
            self._link.send("stop", signal=number)
        self._shorten_deadline(self._limits.stop_grace_s)
        for worker in self._workers:
            # Not SIGINT: a rank that is still starting would answer that with a traceback.
            worker.send(signal.SIGTERM)

    def _look_for_failure(self) -> None:
        if self._failure is not None:
            return
        failures = [*self._here(), *self._elsewhere]
        if not failures:
            return
        if self._settled_s is None:
            # The cause may have been on another node, whose word is on its way.
            self._settled_s = time.monotonic() + (SETTLE_S if self._link.nodes > 1 else 0.0)
            if self._stop is None:
                for worker in self._workers:
                    worker.send(signal.SIGTERM)
            self._shorten_deadline(self._limits.failure_grace_s)
        first = min(failures, key=Failure.order)
        if first.kind == "hung":
            # All that is left to learn of such ranks is where they are.
            for worker in self._workers:
                worker.send(signal.SIGUSR1)
            self._settled_s = time.monotonic()
            self._shorten_deadline(STACK_S)
        if time.monotonic() >= self._settled_s:
            self._failure = first

    def _is_settling(self) -> bool:
        return self._settled_s is not None and self._failure is None

    def _here(self) -> list[Failure]:
        """Why ranks of this node have failed; the other nodes are told of the first."""
        fine = STOPPED_STATUSES if self._stop is not None else {0}
        ended = [worker for worker in self._workers if worker.exit_code() not in (None, *fine)]
        ended = [worker for worker in ended if not worker.killed and not worker.obeyed()]
        if not ended:
            return []
        # A rank may report its error and be slower to end than those who lost it.
        reported = [worker for worker in self._workers if worker.report() is not None and worker not in ended]
        ran_out = self._memory_ran_out()
        failures = [worker.failure(self._link.node, ran_out) for worker in ended + reported]
        first = min(failures, key=Failure.order)
        if first != self._told:
            self._told = first
            self._link.send("failure", **told(first))
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
            say(f"killed before they had ended: {_ranks(self._killed)}")

    def _conclusion(self) -> Failure | None:
        failure = self._failure
        if failure is not None:
            say(f"error: {self._named(failure)}")
            if failure.kind == "hung":
                say(f"where each rank was: {self._log_folder}")
        if self._stop is not None:
            stopped = f"{signal.Signals(self._stop).name}: the run was asked to stop"
            if self._killed:
                stopped += f"; killed before they had ended: {_ranks(self._killed)}"
            if failure is not None:
                stopped += f"; {self._named(failure)}"
            return Failure("stopped", None, stopped, STOPPED[signal.Signals(self._stop)], node=self._link.node)
        if failure is None:
            return None
        wanted = failure.exit_code if failure.exit_code in (USER_MISTAKE, *STOPPED.values()) else 1
        return replace(failure, exit_code=wanted)

    def _named(self, failure: Failure) -> str:
        """The reason, and whose it is; what is wrong with the input is wrong on every rank."""
        if failure.rank is None or failure.exit_code == USER_MISTAKE:
            return failure.reason
        where = f" on node {failure.node}" if self._link.nodes > 1 else ""
        return f"rank {failure.rank}{where}: {failure.reason}"


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
