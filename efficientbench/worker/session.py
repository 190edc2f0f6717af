"""Train one rank's part of a run, and on rank 0 write the record.

Import this only after `Device.prepare`: importing it imports Megatron, which asks for the device at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from efficientbench.devices.base import Device
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.records.facts import RunFacts
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.records.record_parts import ParameterGroup, Preflight, Reinforcement
from efficientbench.metrics.records.sinks.steplog import time_lost
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import Rank
from efficientbench.training import groups
from efficientbench.training.checkpoints.manifest import Manifest, before_attempt
from efficientbench.training.collectives import collectives_begun
from efficientbench.training.events import Listener
from efficientbench.training.trainer import Trainer
from efficientbench.training.update.parameter_roles import decayed_names, role_names
from efficientbench.training.waits import Waits
from efficientbench.worker.build_monitor import build_monitor
from efficientbench.worker.build_record import (
    all_lengths,
    build_record,
    facts_of,
    figures_of,
    parameter_groups,
    run_facts,
)
from efficientbench.worker.build_trainer import build_trainer
from efficientbench.worker.listeners.goodput import Goodput
from efficientbench.worker.listeners.monitoring import Heartbeat, Measure
from efficientbench.worker.listeners.profiler import Profiler
from efficientbench.worker.listeners.progress import ProgressDisplay
from efficientbench.worker.listeners.recorder import Recorder
from efficientbench.worker.listeners.scores import CoreDuringTraining, Scores, all_scores
from efficientbench.worker.preflight import compare
from efficientbench.worker.reinforcement.listener import Rollouts
from efficientbench.worker.reinforcement.pass_at_k import PassAtK


def train_rank(job: Job, rank: Rank, device: Device, torch_device: torch.device) -> bool:
    """Train this rank's part of the run; return whether the run was stopped before its last step."""
    rank.heartbeat.at(0, "meeting the other ranks")
    waits, limit_s = Waits(device, job.layout.pp), job.config.faults.hang_limit_s
    with (
        groups.world(device.backend, limit_s, device.group_device(torch_device, job.layout.pp)),
        groups.model_parallel(job.config.parallel, job.config.training.seed, limit_s),
        contextlib.ExitStack() as closing,
    ):
        rank.heartbeat.collectives = collectives_begun
        wanted = job.layout.nodes > 1 and job.config.faults.preflight_s
        preflight = compare(job, rank, device, torch_device) if wanted else None
        # What ranks wait in a preflight is of no step.
        closing.enter_context(waits.recorded())
        rank.heartbeat.at(0, "building model and data")
        # The first node's parent process has found the checkpoint, and verified it.
        resume = gather(job.resume, Path | None)[0]
        manifest = before_attempt(resume, job.config.init)
        monitor = build_monitor(job, device, rank.number, rank.local, waits, manifest.step if manifest else 0)
        monitor.start()
        # A node's first rank has measured the idle power meanwhile.
        groups.meet_on_host("idle power")
        measure = Measure(monitor, counts_tokens=rank.number == 0)
        facts = run_facts(job, device, torch_device)
        # Before the recorder cuts the lines of an earlier attempt.
        kept_s = manifest.progress["elapsed_s"] if manifest is not None else 0.0
        lost_s = time_lost(OutputFolder(job.output).steps, kept_s) if rank.number == 0 else 0.0
        goodput = Goodput(rank.begin_s, device, measure, job.budget.warmup_steps, manifest, lost_s)
        first = RankZero(job, rank, device, measure, facts, goodput, manifest, lost_s) if rank.number == 0 else None
        if first is not None:
            first.preflight = preflight
            closing.callback(first.close)
        beside = Beside(job, device, rank, measure, manifest)
        closing.callback(beside.close)
        closing.callback(monitor.close)
        listeners: list[Listener] = [goodput.begins, *beside.before, Heartbeat(rank.heartbeat), measure, goodput.ends]
        listeners += [*(first.listeners if first is not None else []), *map(goodput.evaluating, beside.after)]
        progress = partial(first.progress, beside) if first is not None else dict
        trainer = build_trainer(job, torch_device, listeners, progress, resume)
        goodput.attach(trainer)
        if first is not None and first.profiler is not None:
            first.profiler.attach(trainer)
        beside.attach(trainer, first.recorder if first is not None else None)
        names = _parameter_names(job, trainer)
        stopped = trainer.train(rank.stop_requested)
        measured = gather(monitor.finish(), RankMeasurement)
        learned = beside.recorded(measured)
        lengths = all_lengths(job.config, trainer.batches)
        if first is not None:
            first.write_record(trainer, measured, learned, names, lengths, stopped)
    return stopped


def _parameter_names(job: Job, trainer: Trainer) -> tuple[list[str], list[ParameterGroup]]:
    """Return the parameters with weight decay, and those of each optimizer; all ranks call this together."""
    decayed = set().union(*gather(decayed_names(trainer.stages), set[str]))
    roles = gather(role_names(trainer.stages), dict[str, list[str]])
    return sorted(decayed), parameter_groups(job.config.training, roles)


class RankZero:
    """What only rank 0 has: the display, the files, and the run's record."""

    def __init__(
        self,
        job: Job,
        rank: Rank,
        device: Device,
        measure: Measure,
        facts: RunFacts,
        goodput: Goodput,
        manifest: Manifest | None,
        lost_s: float,
    ) -> None:
        """Open the run's files.

        `manifest`: the manifest of the checkpoint to resume from; None: the run starts at step 1. `lost_s`: how long
        earlier attempts worked after it.
        """
        self.job, self.rank, self.device, self.facts, self.goodput = job, rank, device, facts, goodput
        self.folder = OutputFolder(job.output)
        self.recorder = Recorder(job.config, self.folder, measure, manifest, rank.begin_s, lost_s)
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
        self.preflight: Preflight | None = None
        self.listeners: list[Listener] = [self.recorder, self.display]
        self.profiler = Profiler.of(job.config.measurement, steps, self.folder.trace)
        if self.profiler is not None:
            self.listeners.insert(0, self.profiler)

    def progress(self, beside: Beside) -> dict[str, Any]:
        """Return the state that the next attempt resumes from, as plain data for the checkpoint."""
        return self.recorder.progress() | beside.progress() | self.goodput.progress()

    def write_record(
        self,
        trainer: Trainer,
        measured: Sequence[RankMeasurement],
        learned: Reinforcement | None,
        names: tuple[list[str], list[ParameterGroup]],
        lengths: Mapping[int, int],
        stopped: bool,
    ) -> None:
        """Write the record of the run, which has ended.

        Args:
            trainer: the trainer of this rank.
            measured: every rank's measurement, in the order of ranks.
            learned: the record's part on rollouts.
            names: the parameters with weight decay, and those of each optimizer.
            lengths: the documents that the ranks have read, as `all_lengths` returns them.
            stopped: whether the run was stopped before its last step.
        """
        job, recorder, rank, spent = self.job, self.recorder, self.rank, self.goodput.spent()
        duration_s = time.monotonic() - rank.begin_s
        facts = facts_of(self.facts, job.config, self.device.type, lengths)
        of_run = job, self.device, facts, measured, recorder, *names
        bound_s = trainer.checkpoints.longest_bound_s if trainer.checkpoints is not None else None
        record = build_record(*of_run, trainer.batches, stopped, rank.started_at, duration_s, spent, bound_s)
        read = figures_of(facts, job.config, lengths)
        record = record.model_copy(
            update={"reinforcement": learned, "preflight": self.preflight, **read, **all_scores(job.output)}
        )
        recorder.write_curve(record.quality_curve)
        write_record(record, self.folder.record)
        recorder.sinks.figures(record)

    def close(self) -> None:
        """Remove the bar from the terminal and close the files, also after an error."""
        self.display.close()
        self.recorder.close()


class Beside:
    """The listeners of one rank that compute with the model; all ranks have the same.

    They sample rollouts before each step, and score the model after some.
    """

    def __init__(self, job: Job, device: Device, rank: Rank, measure: Measure, manifest: Manifest | None) -> None:
        """Make the listeners that the run asks for; all ranks must call this together.

        Args:
            job: the run's job.
            device: the device type that the ranks train on.
            rank: this process's rank.
            measure: measures the training steps of this rank.
            manifest: the manifest of the checkpoint to resume from; None: the run starts at step 1.

        Raises:
            ConfigError, DataError: as `Rollouts`, `CoreDuringTraining` and `PassAtK`.
        """
        self.rollouts: Rollouts | None = None
        if job.config.training.objective == "rl":
            before = manifest.step if manifest is not None else 0
            monitor = build_monitor(job, device, rank.number, rank.local, None, before)
            self.rollouts = Rollouts(job, rank.heartbeat, measure, monitor, manifest)
        computes = job, rank.heartbeat, measure, device
        found = CoreDuringTraining.of(*computes), PassAtK.of(*computes)
        self.scores: list[Scores] = [each for each in found if each is not None]

    @property
    def before(self) -> list[Listener]:
        """The listeners that come before those that measure a step."""
        return [] if self.rollouts is None else [self.rollouts]

    @property
    def after(self) -> list[Listener]:
        """The listeners that come after those that measure a step."""
        return list(self.scores)

    def attach(self, trainer: Trainer, recorder: Recorder | None) -> None:
        """Give the listeners the trainer and rank 0's recorder, and start the sensors that measure rollouts."""
        for each in self.scores:
            each.trainer, each.recorder = trainer, recorder
        if self.rollouts is not None:
            self.rollouts.trainer, self.rollouts.recorder = trainer, recorder
            self.rollouts.monitor.start()

    def progress(self) -> dict[str, Any]:
        """Return the state that the next attempt resumes from, as plain data for the checkpoint."""
        return {} if self.rollouts is None else self.rollouts.progress()

    def recorded(self, updates: Sequence[RankMeasurement]) -> Reinforcement | None:
        """Return the record's part on rollouts; all ranks call this together. `updates`: each rank's training steps."""
        return None if self.rollouts is None else self.rollouts.recorded(updates)

    def close(self) -> None:
        """Stop the sensors that measure rollouts, also after an error."""
        if self.rollouts is not None:
            self.rollouts.monitor.close()
