"""What one rank does: its device, its part of the model, training, and for rank 0 the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_tools.manifest import Corpus
from efficientbench.corpora import load_corpora
from efficientbench.devices.base import find_device
from efficientbench.job import Job
from efficientbench.listeners.heartbeat import Heartbeat
from efficientbench.listeners.measure import Measure
from efficientbench.listeners.profiler import Profiler
from efficientbench.listeners.progress import ProgressDisplay
from efficientbench.listeners.recorder import Recorder
from efficientbench.measurement import build_monitor, build_record, run_facts
from efficientbench.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import Manifest, read_manifest
from launchers.pulse import Pulse
from metrics.record import write_record
from metrics.summarize import RunFacts

if TYPE_CHECKING:
    import torch

    from efficientbench.training.events import Listener
    from efficientbench.training.trainer import Trainer


def train_rank(job: Job, rank: int, local_rank: int, stop_requested: Callable[[], bool], pulse: Pulse) -> bool:
    """Train this rank's part of the run; returns whether the run was stopped before its last step."""
    started_at, begin_s = datetime.now(timezone.utc), time.monotonic()
    device = find_device(job.config.device)
    torch_device = device.prepare(local_rank)
    # Only now: megatron must find the device prepared.
    from efficientbench.training import groups

    pulse.at(0, "meeting the other ranks")
    limit_s = job.config.faults.hang_limit_s
    with (
        groups.world(device.backend, limit_s),
        groups.model_parallel(job.config.parallel, job.config.training.seed, limit_s),
    ):
        pulse.collectives = groups.collectives_begun
        pulse.at(0, "building model and data")
        # The first node's parent has looked for it, and verified it.
        resume = groups.gather(job.resume)[0]
        before = read_manifest(resume) if resume is not None else None
        monitor = build_monitor(job, device, rank, local_rank, before.step if before is not None else 0)
        monitor.start()
        measure = Measure(monitor, counts_tokens=rank == 0)
        facts = run_facts(job, device)
        reporter = RankZero(job, measure, facts, before) if rank == 0 else None
        listeners: list[Listener] = [Heartbeat(pulse), measure, *(reporter.listeners if reporter else [])]
        try:
            progress = reporter.recorder.progress if reporter is not None else dict
            trainer = build_trainer(job, torch_device, listeners, progress, resume)
            if reporter is not None and reporter.profiler is not None:
                reporter.profiler.attach(trainer)
            stopped = trainer.train(stop_requested)
            measured = groups.gather(monitor.finish())
            if reporter is not None:
                duration_s = time.monotonic() - begin_s
                record = build_record(job, device, facts, measured, reporter.recorder, stopped, started_at, duration_s)
                reporter.recorder.write_curve(record.quality_curve)
                write_record(record, reporter.folder.record)
        finally:
            monitor.close()
            if reporter is not None:
                reporter.close()
    return stopped


class RankZero:
    """What only rank 0 does: the display and the files."""

    def __init__(self, job: Job, measure: Measure, facts: RunFacts, before: Manifest | None) -> None:
        """`before`: of the checkpoint that the run goes on from."""
        self.folder = OutputFolder(job.output)
        self.recorder = Recorder(job.config, self.folder, measure, before)
        peak_flops = facts.peak_flops * facts.devices if facts.peak_flops is not None else None
        steps = job.budget.steps
        self.display = ProgressDisplay(
            job.config.training,
            steps,
            measure,
            facts.flops_per_token,
            peak_flops,
            before.step if before is not None else 0,
        )
        self.listeners: list[Listener] = [self.recorder, self.display]
        self.profiler = Profiler.of(job.config.measurement, steps, self.folder.trace)
        if self.profiler is not None:
            self.listeners.insert(0, self.profiler)

    def close(self) -> None:
        """Leave terminal and files in order, also after an error."""
        self.display.close()
        self.recorder.close()


def build_trainer(
    job: Job,
    device: torch.device,
    listeners: list[Listener],
    progress: Callable[[], dict[str, Any]] = dict,
    resume: Path | None = None,
) -> Trainer:
    """Model, optimizer and batches of this rank. All ranks must call it together.

    Args:
        job, device, listeners: of this rank.
        progress: what the listeners want to find in a checkpoint.
        resume: the checkpoint to go on from.
    """
    from efficientbench.model.gpt import build_stages
    from efficientbench.model.held import held_parameters
    from efficientbench.training.batches import Batches, Vocabulary
    from efficientbench.training.checkpoints.checkpoints import Checkpoints
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
    from efficientbench.training.trainer import Trainer

    config, corpora = job.config, load_corpora(job)
    fingerprints = {f"fingerprint {number}": corpus.fingerprint for number, corpus in enumerate(corpora)}
    # Of one tokenizer all, which the parent process has seen to.
    vocabulary = Vocabulary(corpora[0].vocab_size, corpora[0].eod_id, fingerprints)
    batches = Batches(config, job.budget.steps, [corpus.prefix for corpus in corpora], vocabulary, device)
    models = build_stages(config, device)
    stages = [wrap_data_parallel(model, config) for model in models]
    optimizer = build_optimizer(stages, config)
    checkpoints = Checkpoints(
        config,
        job.layout,
        job.budget.steps,
        [corpus.fingerprint for corpus in corpora],
        job.output,
        held_parameters(models, config.model),
        optimizer,
        progress,
    )
    before = checkpoints.restore(resume) if resume is not None else None
    token_bytes = _token_bytes(corpora[0], device)
    steps = job.budget.steps
    return Trainer(config, steps, stages, optimizer, batches, listeners, token_bytes, checkpoints, before)


def _token_bytes(corpus: Corpus, device: torch.device) -> torch.Tensor | None:
    """[V] int64, UTF-8 bytes of each token; None where the tokenizer does not tell."""
    if corpus.token_bytes_path is None:
        return None
    import numpy as np
    import torch

    return torch.from_numpy(np.load(corpus.token_bytes_path).astype(np.int64)).to(device)
