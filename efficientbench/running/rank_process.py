"""A rank's process: its set-up, its work and its end."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from efficientbench.basics.files import no_link
from efficientbench.basics.readers import outlive_readers
from efficientbench.launchers.processes.failure import STOP_EXIT_CODES, Failure, report_failure

logger = logging.getLogger(__name__)


StopRequested = Callable[[], bool]
"""Returns whether a signal has asked this process to stop."""


def run_rank(
    rank: int, log_file: Path, work: Callable[[StopRequested], bool], diagnose: Callable[[Exception], Failure]
) -> int:
    """Do a rank's work, report an error to the launcher, and return the exit code.

    Args:
        rank: the rank of this process.
        log_file: the file for the rank's log, with the traceback of an error.
        work: does the rank's work, and returns whether it was stopped before its end.
        diagnose: returns the failure that an error means.
    """
    set_up_logging(log_file)
    received = note_signals()
    try:
        stopped = work(lambda: bool(received))
    except Exception as error:
        logger.exception("rank %d failed", rank)
        failure = diagnose(error)
        report_failure(failure)
        return failure.exit_code
    # A rank that stops because another was asked to has received no signal itself.
    return 128 + (received[0] if received else signal.SIGTERM) if stopped else 0


def end(exit_code: int) -> NoReturn:
    """End this process without the interpreter's own shutdown.

    Threads of the collective backend run on. One that touches a Python object during the shutdown is unwound through
    C++ code that allows no unwinding, and a complete run would end by SIGABRT.
    """
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def set_up_logging(path: Path) -> None:
    """Append this process's log, warnings and, on SIGUSR1 or a fatal signal, all threads' stacks to a file.

    Drop what it prints to a terminal that has been closed.
    """
    outlive_readers()
    # On a full disk, logging would print a traceback for each line over the one message that matters.
    logging.raiseExceptions = False
    log = open(path, "a", encoding="utf-8", opener=no_link)  # noqa: SIM115, held until this process ends
    logging.basicConfig(
        stream=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # Where a library ends the process by a signal, the threads' stacks are all that shows why.
    faulthandler.enable(file=log)
    # The launcher sends SIGUSR1 when a run hangs: every thread's stack goes to the log, also from a native call.
    faulthandler.register(signal.SIGUSR1, file=log)
    # Megatron logs at length what it would do with Transformer Engine and Apex.
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="megatron")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    logging.captureWarnings(True)
    # A traceback of a library's thread would be printed over the progress bar.
    threading.excepthook = lambda failed: logger.error("thread %s failed: %s", failed.thread, failed.exc_value)


def note_signals() -> list[int]:
    """Return a list to which each stop signal is appended as it arrives; ignored signals stay ignored."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    for number in STOP_EXIT_CODES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, note)
    return received
