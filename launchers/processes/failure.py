"""The reason why a run ended early: ranks report it, launchers exchange it, and `failure.json` holds it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from pydantic import TypeAdapter

from efficientbench.basics.foreign import read_whole
from efficientbench.launchers.files import write_whole

FailureKind = Literal[
    "out_of_memory", "non_finite", "hung", "lost_rank", "full_disk", "mistake", "crash", "stopped", "time_limit"
]
"""`lost_rank`: a process ended without a report, or a rank reports that it lost another one, which is the cause.
`mistake`: the user can mend it. `stopped`: a signal asked for it. `crash`: any other error."""

USER_MISTAKE = 2
"""Exit code of a run that failed by a mistake of the user."""
STOP_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
"""Stop signal → exit code of a run that it stopped."""

SENT_WHEN = {
    signal.SIGKILL: " (the kernel does so when memory runs out)",
    signal.SIGBUS: " (a file that it had open was cut short, or shared memory is full)",
}
"""Signal → its usual cause, which its name does not say."""

REPORT_VARIABLE = "EFFICIENTBENCH_FAILURE_FILE"
"""Environment variable that names the file in which a rank reports its failure."""


@dataclass(frozen=True)
class Failure:
    """Why a run ended early."""

    kind: FailureKind
    reason: str
    exit_code: int = 1
    """Exit code of the whole run."""
    rank: int | None = None
    """The rank at fault; None where no single rank is."""
    step: int | None = None
    """The optimizer step in which it happened; None where that is not known."""
    checkpoint: str | None = None
    """Folder of the last good checkpoint."""
    node: int = 0
    time_s: float = field(default_factory=time.time, compare=False)
    """When it happened, in seconds since the epoch."""
    silent: bool = False
    """Whether the process ended without a report: killed, or crashed."""

    def order(self) -> tuple[int, float]:
        """Return the key that sorts the cause first: a hang, then an end without a report, then the earliest report.

        The launcher ends the ranks of a hang itself. Ranks that merely lost another one notice it later and report it.
        """
        if self.kind == "hung":
            return (0, self.time_s)
        if self.silent:
            return (1, self.time_s)
        return (3 if self.kind == "lost_rank" else 2, self.time_s)


def ends_at_once(signals: Sequence[int]) -> bool:
    """Return whether Ctrl-C came after another stop signal, so that nothing has to be saved any more.

    A further SIGTERM or SIGHUP does not count: schedulers send SIGTERM to a job and to its processes, and again at a
    time limit; when a terminal is closed, both the kernel and the shell send SIGHUP.
    """
    return signal.SIGINT in signals[1:]


def note_stop_signals() -> tuple[list[int], dict[int, Any]]:
    """Return a list to which each stop signal is appended as it arrives, and each such signal's handler before.

    Signals that this process was started to ignore stay ignored, such as SIGHUP under nohup.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    wanted = [number for number in STOP_EXIT_CODES if signal.getsignal(number) is not signal.SIG_IGN]
    return received, {number: signal.signal(number, note) for number in wanted}


def ended_by(number: int) -> str:
    """Return in words that a signal ended a process; most real-time signals have a number and no name."""
    try:
        return f"ended by {signal.Signals(number).name}{SENT_WHEN.get(signal.Signals(number), '')}"
    except ValueError:
        return f"ended by signal {number}"


_FAILURE = TypeAdapter(Failure)


def report_failure(failure: Failure) -> None:
    """Report this rank's failure to its launcher; do nothing where no launcher started this process.

    Call it before closing sockets or process groups: the launcher takes the earliest report for the cause.
    """
    path = os.environ.get(REPORT_VARIABLE)
    if not path:
        return
    if failure.rank is None:
        failure = replace(failure, rank=int(os.environ.get("RANK", "0")))
    # A full disk must not hide the error that is being reported.
    with contextlib.suppress(OSError):
        write_whole(Path(path), json.dumps(asdict(failure)).encode())


def read_failure(path: Path) -> Failure | None:
    """Return the failure in a rank's report or in `failure.json`; None where no such file can be read."""
    try:
        return _FAILURE.validate_json(read_whole(path))
    except (OSError, ValueError):
        return None
