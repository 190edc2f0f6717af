"""One rank of a run: `python -m efficientbench.worker CONFIG.json`, started by the launcher.

It trains (session.py), or tries whether the run fits (trial.py), and reports a failure to the launcher.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from efficientbench.basics.readers import outlive_readers
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.failures import diagnose
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import StopRequested, end, run_rank
from efficientbench.worker.session import train_rank
from efficientbench.worker.trial import try_rank


def main() -> int:
    """Train the rank that the environment names, and report an error to the launcher; return the exit code."""
    outlive_readers(pipes=True)
    # The launcher wrote the file, and has itself loaded the same variants for the user's command.
    job = Job.read(Path(sys.argv[1]), trusted=True)
    rank = int(os.environ["RANK"])
    log_file = OutputFolder(job.output).log / f"rank_{rank}.log"

    def work(stop_requested: StopRequested) -> bool:
        heartbeat = HeartbeatWriter()
        heartbeat.start()
        train = try_rank if job.trial else train_rank
        return train(job, rank, int(os.environ["LOCAL_RANK"]), stop_requested, heartbeat)

    return run_rank(rank, log_file, work, lambda error: diagnose(error, job, log_file))


if __name__ == "__main__":
    end(main())
