"""The work of a run's ranks: training, or a trial of whether the run fits into memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from efficientbench.devices.deterministic import compute_deterministically
from efficientbench.devices.loading import absent, loading
from efficientbench.devices.registry import find_device
from efficientbench.running.failures import diagnose
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import Rank, Work


def rank_work(job_file: Path) -> Work:
    """Return the work of a run's ranks."""
    # The launcher wrote the file, and has itself loaded the same variants for the user's command.
    job = Job.read(job_file, trusted=True)
    log = OutputFolder(job.output).log
    return Work(log, partial(_prepare_and_do, job), lambda error, log_file: diagnose(error, job, log_file))


def _prepare_and_do(job: Job, rank: Rank) -> bool:
    with loading():
        device = find_device(job.config.device)
        torch_device = device.prepare(rank.local)
        if job.config.training.deterministic and not job.trial:
            compute_deterministically()
        # After `prepare`: Megatron asks for the device as it is imported. Before the heartbeat reports a phase: a rank
        # that loads slowly does not hang.
        with absent(*device.needless):
            from efficientbench.worker.session import train_rank
            from efficientbench.worker.trial import try_rank
    return (try_rank if job.trial else train_rank)(job, rank, device, torch_device)
