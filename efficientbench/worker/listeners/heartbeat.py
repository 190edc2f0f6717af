"""Notes where training is, for the heartbeats that the launcher reads."""

from __future__ import annotations

from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.training.events import (
    CheckpointEnded,
    CheckpointStarted,
    Event,
    StepStarted,
    TrainingEnded,
    ValidationEnded,
    ValidationStarted,
)


class Heartbeat:
    """Passes steps, validations and checkpoints to the heartbeat writer."""

    def __init__(self, writer: HeartbeatWriter) -> None:
        self.writer = writer

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            self.writer.at(event.step, "training")
        elif isinstance(event, ValidationStarted):
            self.writer.at(event.step, "validation")
        elif isinstance(event, ValidationEnded):
            self.writer.at(event.step, "after a validation")
        elif isinstance(event, CheckpointStarted):
            self.writer.at(event.step, "saving a checkpoint")
        elif isinstance(event, CheckpointEnded):
            self.writer.at(event.step, "after a checkpoint")
        elif isinstance(event, TrainingEnded):
            self.writer.at(event.steps, "after training")
