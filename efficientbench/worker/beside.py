"""The work of a rank beside its training steps: rollouts before each step, and scores after some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from efficientbench.devices.base import Device
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.records.record_parts import Reinforcement
from efficientbench.running.job import Job
from efficientbench.running.rank_process import Rank
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.events import Listener
from efficientbench.training.trainer import Trainer
from efficientbench.worker.build_monitor import build_monitor
from efficientbench.worker.listeners.core import CoreDuringTraining
from efficientbench.worker.listeners.monitoring import Measure
from efficientbench.worker.listeners.recorder import Recorder
from efficientbench.worker.reinforcement.listener import Rollouts
from efficientbench.worker.reinforcement.pass_at_k import PassAtK

if TYPE_CHECKING:
    from efficientbench.worker.listeners.scores import Scores


class Beside:
    """The listeners of one rank that compute with the model; all ranks have the same."""

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
