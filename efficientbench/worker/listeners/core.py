"""Score the model by CORE during training, every `evaluation.core_every` steps, on a part of each task's rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from efficientbench.basics.errors import ConfigError
from efficientbench.devices.base import Device
from efficientbench.evaluation.core.bundle import read_bundle
from efficientbench.evaluation.core.task import Core
from efficientbench.evaluation.task import BATCH_TOKENS, Options, Summary
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.job import Job
from efficientbench.worker.listeners.monitoring import Measure
from efficientbench.worker.listeners.scores import Scores

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


class CoreDuringTraining(Scores):
    """Scores the model by CORE."""

    def __init__(self, job: Job, data: str, heartbeat: HeartbeatWriter, measure: Measure, device: Device) -> None:
        """Read the bundle. `data`: its folder, or one that has it as `core/`; all other arguments: see `Scores`.

        Raises:
            ConfigError, DataError: as `Scores` and `read_bundle`.
        """
        super().__init__(job, "CORE", job.config.evaluation.core_every, heartbeat, measure, device)
        self.limit, self.longest = job.config.evaluation.core_limit, job.config.model.position.longest
        self.bundle = read_bundle(Options(job.output, Path(data)).data_folder("core"), self.limit)

    @classmethod
    def of(cls, job: Job, heartbeat: HeartbeatWriter, measure: Measure, device: Device) -> CoreDuringTraining | None:
        """Return the listener of a run; None where the run does not ask for one.

        Raises ConfigError: there is no such folder.
        """
        evaluation = job.config.evaluation
        if not evaluation.core_every or evaluation.core_data is None:
            return None
        if not Path(evaluation.core_data).is_dir():
            raise ConfigError(f"evaluation.core_data: {evaluation.core_data}: no such folder")
        return cls(job, evaluation.core_data, heartbeat, measure, device)

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
