"""A rank's process: its set-up, its work and its end."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import itertools
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from efficientbench.basics.files import no_link
from efficientbench.basics.readers import outlive_readers
from efficientbench.launchers.processes.failure import Failure, note_stop_signals, report_failure
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter

logger = logging.getLogger(__name__)

StopRequested = Callable[[], bool]
"""Returns whether a signal has asked this process to stop."""


@dataclass(frozen=True)
class Rank:
    """One rank, as its work sees it."""

    number: int
    """The rank's number in the whole run."""
    local: int
    """The rank's number on its node."""
    heartbeat: HeartbeatWriter
    """Shows the launcher that the rank makes progress."""
    stop_requested: StopRequested
    started_at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    begin_s: float = field(default_factory=time.monotonic)
    """When the rank's work began, on the monotonic clock."""
    _reports: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def report(self, what: str) -> None:
        """Tell the launcher that this rank makes progress at `what`; the hang limit counts from the last report."""
        self.heartbeat.at(next(self._reports), what)


@dataclass(frozen=True)
class Work:
    """The work of a job's ranks."""

    log: Path
    """The folder of the ranks' logs."""
    do: Callable[[Rank], bool]
    """Does the work of a rank; returns whether the rank stopped before the end of its work."""
    diagnose: Callable[[Exception, Path], Failure]
    """Returns the failure that an error means; the path is the log that holds the error's traceback."""
    ends_at_once: bool = False
    """Whether a stop signal ends the process at once, since there is nothing left to save."""


def run_rank(module: str, job_file: Path) -> int:
    """Do the work of the rank that the environment names, report an error to the launcher, and return the exit code.

    Args:
        module: the module of the work: its function `rank_work` takes the job's file and returns the `Work`.
        job_file: the file of the job.
    """
    # Before any code of others runs, which may print.
    outlive_readers(pipes=True)
    number = int(os.environ["RANK"])
    work: Work = importlib.import_module(module).rank_work(job_file)
    log_file = work.log / f"rank_{number}.log"
    set_up_logging(log_file)
    # This process keeps the handlers to its end.
    received: list[int] = [] if work.ends_at_once else note_stop_signals()[0]
    heartbeat = HeartbeatWriter()
    try:
        heartbeat.start()
        stopped = work.do(Rank(number, int(os.environ["LOCAL_RANK"]), heartbeat, lambda: bool(received)))
    except Exception as error:
        logger.exception("rank %d failed", number)
        failure = work.diagnose(error, log_file)
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
    """Append this process's log, warnings and, on SIGUSR1 or a fatal signal, all threads' stacks to a file."""
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
