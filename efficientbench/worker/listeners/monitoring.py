"""Forward training events: to the monitor, which measures steps, and to the heartbeat, which the launcher watches."""

from __future__ import annotations

from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics import EfficiencyMonitor
from efficientbench.training.events import (
    CheckpointEnded,
    CheckpointStarted,
    Event,
    RecheckEnded,
    RecheckStarted,
    StepEnded,
    StepStarted,
    TrainingEnded,
    ValidationEnded,
    ValidationStarted,
)


class Measure:
    """Calls the monitor as steps begin and end, and pauses it during rechecks, validations and checkpoints."""

    def __init__(self, monitor: EfficiencyMonitor, counts_tokens: bool) -> None:
        """`counts_tokens`: whether this rank counts the tokens of all ranks, as exactly one rank must."""
        self.monitor = monitor
        self.counts_tokens = counts_tokens
        self.step_time_s = 0.0
        """Synchronized wall time of the last step on this rank."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            self.monitor.begin_step()
        elif isinstance(event, StepEnded):
            self.step_time_s = self.monitor.end_step(event.tokens if self.counts_tokens else 0)
        elif isinstance(event, RecheckStarted | ValidationStarted | CheckpointStarted):
            self.monitor.pause()
        elif isinstance(event, RecheckEnded | ValidationEnded | CheckpointEnded):
            self.monitor.resume()


PHASES: dict[type[Event], str] = {
    StepStarted: "training",
    RecheckStarted: "rechecking a micro-batch",
    RecheckEnded: "after a recheck",
    ValidationStarted: "validation",
    ValidationEnded: "after a validation",
    CheckpointStarted: "saving a checkpoint",
    CheckpointEnded: "after a checkpoint",
    TrainingEnded: "after training",
}
"""Event → what a rank does after it; the report of a rank that hangs there has these words."""


class Heartbeat:
    """Writes step and phase into the heartbeat, by which the launcher distinguishes a hang from slow work."""

    def __init__(self, writer: HeartbeatWriter) -> None:
        self.writer = writer

    def __call__(self, event: Event) -> None:
        phase = PHASES.get(type(event))
        if phase is not None:
            self.writer.at(event.steps if isinstance(event, TrainingEnded) else event.step, phase)
