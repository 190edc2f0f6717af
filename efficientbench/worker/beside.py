"""The work of a rank beside its training steps: rollouts before each and scores after some, where the run asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from efficientbench.devices.base import Device
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.records.record_parts import Reinforcement
from efficientbench.running.job import Job
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

    def __init__(
        self,
        job: Job,
        device: Device,
        rank: int,
        local_rank: int,
        heartbeat: HeartbeatWriter,
        measure: Measure,
        manifest: Manifest | None,
    ) -> None:
        """Make those that the run asks for; all ranks must call this together.

        Args:
            job: the run.
            device: of this rank.
            rank: of this process in the run.
            local_rank: of this process on its node.
            heartbeat: of this rank.
            measure: of its steps.
            manifest: of the checkpoint that the run resumes from; None: it starts at step 1.

        Raises:
            ConfigError, DataError: what they need is not at hand.
        """
        self.rollouts: Rollouts | None = None
        if job.config.training.objective == "rl":
            before = manifest.step if manifest is not None else 0
            monitor = build_monitor(job, device, rank, local_rank, None, before)
            self.rollouts = Rollouts(job, heartbeat, measure, monitor, manifest)
        computes = job, heartbeat, measure, device
        found = CoreDuringTraining.of(*computes), PassAtK.of(*computes)
        self.scores: list[Scores] = [each for each in found if each is not None]

    @property
    def before(self) -> list[Listener]:
        """Those that come before whatever measures a step."""
        return [] if self.rollouts is None else [self.rollouts]

    @property
    def after(self) -> list[Listener]:
        """Those that come behind."""
        return list(self.scores)

    def attach(self, trainer: Trainer, recorder: Recorder | None) -> None:
        """Take what computes, and rank 0's recorder; the sensors of rollouts begin to sample."""
        for each in self.scores:
            each.trainer, each.recorder = trainer, recorder
        if self.rollouts is not None:
            self.rollouts.trainer, self.rollouts.recorder = trainer, recorder
            self.rollouts.monitor.start()

    def progress(self) -> dict[str, Any]:
        """Return what a later attempt of the run needs of this one, as plain data for the checkpoint."""
        return {} if self.rollouts is None else self.rollouts.progress()

    def recorded(self, updates: Sequence[RankMeasurement]) -> Reinforcement | None:
        """Return what the record has of rollouts; all ranks call this together. `updates`: of every rank, of steps."""
        return None if self.rollouts is None else self.rollouts.recorded(updates)

    def close(self) -> None:
        """Stop sampling, also after an error."""
        if self.rollouts is not None:
            self.rollouts.monitor.close()
