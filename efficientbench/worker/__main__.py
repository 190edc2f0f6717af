"""One rank of a run: `python -m efficientbench.worker CONFIG.json`, started by the launcher.

Set up logging and signals, train (session.py), and report every end to the launcher.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from efficientbench.launchers.processes.failure import report_failure
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.failures import diagnose
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import end, note_signals, set_up_logging
from efficientbench.worker.session import train_rank
from efficientbench.worker.trial import try_rank

logger = logging.getLogger(__name__)


def main() -> int:
    """Train the rank that the environment names, and report an error to the launcher; return the exit code."""
    # The file is from the launcher, which has loaded the same for the user's command.
    job = Job.read(Path(sys.argv[1]), trusted=True)
    rank = int(os.environ["RANK"])
    log_file = OutputFolder(job.output).log / f"rank_{rank}.log"
    set_up_logging(log_file)
    received = note_signals()
    heartbeat = HeartbeatWriter()
    heartbeat.start()
    try:
        work = try_rank if job.trial else train_rank
        stopped = work(job, rank, int(os.environ["LOCAL_RANK"]), lambda: bool(received), heartbeat)
    except Exception as error:
        logger.exception("rank %d failed", rank)
        failure = diagnose(error, job, log_file)
        report_failure(failure)
        return failure.exit_code
    if not stopped:
        return 0
    return 128 + (received[0] if received else signal.SIGTERM)


if __name__ == "__main__":
    end(main())
