"""Score the model by CORE during training, every `evaluation.core_every` steps, on a part of each task's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efficientbench.devices.base import Device
from efficientbench.evaluation.core.bundle import Bundle, bundle_of
from efficientbench.evaluation.core.task import Core
from efficientbench.evaluation.task import BATCH_TOKENS, Summary
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.job import Job
from efficientbench.worker.listeners.monitoring import Measure
from efficientbench.worker.listeners.scores import Scores

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


class CoreDuringTraining(Scores):
    """Scores the model by CORE."""

    def __init__(self, job: Job, bundle: Bundle, heartbeat: HeartbeatWriter, measure: Measure, device: Device) -> None:
        """Take the bundle; all other arguments: see `Scores`. Raises ConfigError, DataError: as `Scores`."""
        super().__init__(job, "CORE", job.config.evaluation.core_every, heartbeat, measure, device)
        self.limit, self.longest = job.config.evaluation.core_limit, job.config.model.position.longest
        self.bundle = bundle

    @classmethod
    def of(cls, job: Job, heartbeat: HeartbeatWriter, measure: Measure, device: Device) -> CoreDuringTraining | None:
        """Return the listener of a run; None where the run does not ask for one.

        Raises ConfigError, DataError: as `Scores` and `bundle_of`.
        """
        bundle = bundle_of(job.config.evaluation)
        return None if bundle is None else cls(job, bundle, heartbeat, measure, device)

    def task(self, model: GPT, step: int) -> Core:
        """Return CORE, bound to the model."""
        return Core(model, self.tokenizer, self.bundle, self.longest, self.limit, BATCH_TOKENS)

    def shown(self, summary: Summary) -> str:
        """Return the line to print: CORE, or the figures of the tasks where some are missing."""
        core = summary.figures["core"]
        if core is not None:
            return f"CORE {core:.4f}"
        known = {name: value for name, value in summary.figures.items() if value is not None}
        return f"CORE n/a ({summary.unavailable['core']}); " + ", ".join(f"{name} {v:.3f}" for name, v in known.items())
