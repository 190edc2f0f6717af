"""One rank of a run: `python -m efficientbench.worker CONFIG.json`, started by the launcher.

Set up logging and signals, train (session.py), and report every end to the launcher.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import NoReturn

from efficientbench.launchers.files import no_link
from efficientbench.launchers.processes.failure import report_failure
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.failures import diagnose
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.worker.session import train_rank

logger = logging.getLogger(__name__)


def main() -> int:
    """Train the rank that the environment names, and report an error to the launcher; return the exit code."""
    # The file is from the launcher, which has loaded the same for the user's command.
    job = Job.read(Path(sys.argv[1]), trusted=True)
    rank = int(os.environ["RANK"])
    log_file = OutputFolder(job.output).log / f"rank_{rank}.log"
    _set_up_logging(log_file)
    received = _note_signals()
    heartbeat = HeartbeatWriter()
    heartbeat.start()
    try:
        stopped = train_rank(job, rank, int(os.environ["LOCAL_RANK"]), lambda: bool(received), heartbeat)
    except Exception as error:
        logger.exception("rank %d failed", rank)
        failure = diagnose(error, job, log_file)
        report_failure(failure)
        return failure.exit_code
    if not stopped:
        return 0
    return 128 + (received[0] if received else signal.SIGTERM)


def _end(exit_code: int) -> NoReturn:
    """End this process without the interpreter's own end.

    Threads of the collectives' backend run on. One that touches a Python object while the interpreter ends is unwound
    through C++ code that allows no unwinding, and a run that is complete would end by SIGABRT.
    """
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def _set_up_logging(path: Path) -> None:
    # On a full disk, logging would print a traceback for each line over the one message that matters.
    logging.raiseExceptions = False
    log = open(path, "a", encoding="utf-8", opener=no_link)  # noqa: SIM115, held until this process ends
    logging.basicConfig(
        stream=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # Where a library ends the process by a signal, the threads' stacks are all that tells why.
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


def _note_signals() -> list[int]:
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return received


if __name__ == "__main__":
    _end(main())
