"""Feeds the monitor from training events."""

from __future__ import annotations

from efficientbench.metrics import EfficiencyMonitor
from efficientbench.training.events import (
    CheckpointEnded,
    CheckpointStarted,
    Event,
    StepEnded,
    StepStarted,
    ValidationEnded,
    ValidationStarted,
)


class Measure:
    """Tells the monitor when steps begin and end, and keeps validations and checkpoints out of its window."""

    def __init__(self, monitor: EfficiencyMonitor, counts_tokens: bool) -> None:
        """`counts_tokens`: whether this rank answers for the tokens of all ranks, which one of them does."""
        self.monitor = monitor
        self.counts_tokens = counts_tokens
        self.step_time_s = 0.0
        """Synchronized wall time of the last step on this rank."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            self.monitor.begin_step()
        elif isinstance(event, StepEnded):
            self.step_time_s = self.monitor.end_step(event.tokens if self.counts_tokens else 0)
        elif isinstance(event, ValidationStarted | CheckpointStarted):
            self.monitor.pause()
        elif isinstance(event, ValidationEnded | CheckpointEnded):
            self.monitor.resume()
