"""Train one rank's part of a run, and on rank 0 write the record."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientbench.devices.deterministic import compute_deterministically
from efficientbench.devices.registry import find_device
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.records.facts import RunFacts
from efficientbench.metrics.records.record import write_record
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import StopRequested
from efficientbench.training.checkpoints.manifest import Manifest, read_manifest
from efficientbench.worker.build_monitor import build_monitor
from efficientbench.worker.build_record import build_record, parameter_groups, run_facts
from efficientbench.worker.listeners.goodput import Goodput, time_lost
from efficientbench.worker.listeners.monitoring import Heartbeat, Measure
from efficientbench.worker.listeners.profiler import Profiler
from efficientbench.worker.listeners.progress import ProgressDisplay
from efficientbench.worker.listeners.recorder import Recorder
from efficientbench.worker.loading import loading

if TYPE_CHECKING:
    from efficientbench.training.events import Listener
    from efficientbench.worker.beside import Beside


def train_rank(job: Job, rank: int, local_rank: int, stop_requested: StopRequested, heartbeat: HeartbeatWriter) -> bool:
    """Train this rank's part of the run; returns whether the run was stopped before its last step."""
    started_at, begin_s = datetime.now(timezone.utc), time.monotonic()
    with loading():
        device = find_device(job.config.device)
        torch_device = device.prepare(local_rank)
        if job.config.training.deterministic:
            compute_deterministically()
        # After `prepare`: Megatron asks for the device as it is imported. Before the heartbeat starts to report a step:
        # a rank that loads slowly does not hang.
        from efficientbench.metrics.monitoring.exchange import gather
        from efficientbench.training import groups
        from efficientbench.training.collectives import collectives_begun
        from efficientbench.training.update.parameter_roles import decayed_names, role_names
        from efficientbench.training.waits import Waits
        from efficientbench.worker.beside import Beside
        from efficientbench.worker.build_trainer import build_trainer
        from efficientbench.worker.listeners.scores import all_scores

    heartbeat.at(0, "meeting the other ranks")
    waits = Waits(device, job.layout.pp)
    limit_s = job.config.faults.hang_limit_s
    with (
        groups.world(device.backend, limit_s, device.group_device(torch_device, job.layout.pp)),
        groups.model_parallel(job.config.parallel, job.config.training.seed, limit_s),
        waits.recorded(),
    ):
        heartbeat.collectives = collectives_begun
        heartbeat.at(0, "building model and data")
        # The first node's parent process has found the checkpoint, and verified it.
        resume = gather(job.resume, Path | None)[0]
        manifest = read_manifest(resume) if resume is not None else None
        monitor = build_monitor(job, device, rank, local_rank, waits, manifest.step if manifest is not None else 0)
        monitor.start()
        # A node's first rank has measured the idle power meanwhile.
        groups.meet_on_host("idle power")
        measure = Measure(monitor, counts_tokens=rank == 0)
        facts = run_facts(job, device, torch_device)
        # Before the recorder cuts the lines of an earlier attempt.
        lost_s = time_lost(OutputFolder(job.output).steps, manifest) if rank == 0 else 0.0
        goodput = Goodput(begin_s, device, measure, job.budget.warmup_steps, manifest, lost_s)
        reporter = RankZero(job, measure, facts, manifest) if rank == 0 else None
        beside = Beside(job, device, rank, local_rank, heartbeat, measure, manifest)
        shown = reporter.listeners if reporter is not None else []
        listeners: list[Listener] = [goodput.begins, *beside.before, Heartbeat(heartbeat), measure, goodput.ends]
        listeners += [*shown, *map(goodput.evaluating, beside.after)]
        try:
            progress = partial(_progress, reporter.recorder, beside, goodput) if reporter is not None else dict
            trainer = build_trainer(job, torch_device, listeners, progress, resume)
            goodput.attach(trainer)
            if reporter is not None and reporter.profiler is not None:
                reporter.profiler.attach(trainer)
            beside.attach(trainer, reporter.recorder if reporter is not None else None)
            decayed = set().union(*gather(decayed_names(trainer.stages), set[str]))
            roles = gather(role_names(trainer.stages), dict[str, list[str]])
            stopped = trainer.train(stop_requested)
            measured = gather(monitor.finish(), RankMeasurement)
            learned = beside.recorded(measured)
            if reporter is not None:
                duration_s = time.monotonic() - begin_s
                recorder, batches, spent = reporter.recorder, trainer.batches, goodput.spent()
                named = sorted(decayed), parameter_groups(job.config.training, roles)
                record = build_record(
                    job, device, facts, measured, recorder, *named, batches, stopped, started_at, duration_s, spent
                )
                further = {"reinforcement": learned, **all_scores(job.output)}
                record = record.model_copy(update=further)
                reporter.recorder.write_curve(record.quality_curve)
                write_record(record, reporter.folder.record)
                recorder.sinks.figures(record)
        finally:
            monitor.close()
            beside.close()
            if reporter is not None:
                reporter.close()
    return stopped


def _progress(recorder: Recorder, beside: Beside, goodput: Goodput) -> dict[str, Any]:
    return recorder.progress() | beside.progress() | goodput.progress()


class RankZero:
    """The listeners that only rank 0 has: the display and the files."""

    def __init__(self, job: Job, measure: Measure, facts: RunFacts, manifest: Manifest | None) -> None:
        """`manifest`: the manifest of the checkpoint to resume from; None: the run starts at step 1."""
        self.folder = OutputFolder(job.output)
        self.recorder = Recorder(job.config, self.folder, measure, manifest)
        peak_flops = facts.peak_flops * facts.devices if facts.peak_flops is not None else None
        steps = job.budget.steps
        self.display = ProgressDisplay(
            job.config.training,
            steps,
            measure,
            facts.flops_per_token,
            peak_flops,
            manifest.step if manifest is not None else 0,
        )
        self.listeners: list[Listener] = [self.recorder, self.display]
        self.profiler = Profiler.of(job.config.measurement, steps, self.folder.trace)
        if self.profiler is not None:
            self.listeners.insert(0, self.profiler)

    def close(self) -> None:
        """Remove the bar from the terminal and close the files, also after an error."""
        self.display.close()
        self.recorder.close()
