"""Notes where training is, for the signs of life that the launcher reads."""

from __future__ import annotations

from efficientbench.launchers.processes.liveness import Pulse
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
    """Tells the pulse of steps, validations and checkpoints."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            self.pulse.at(event.step, "training")
        elif isinstance(event, ValidationStarted):
            self.pulse.at(event.step, "validation")
        elif isinstance(event, ValidationEnded):
            self.pulse.at(event.step, "after a validation")
        elif isinstance(event, CheckpointStarted):
            self.pulse.at(event.step, "saving a checkpoint")
        elif isinstance(event, CheckpointEnded):
            self.pulse.at(event.step, "after a checkpoint")
        elif isinstance(event, TrainingEnded):
            self.pulse.at(event.steps, "after training")
