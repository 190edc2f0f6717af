"""Score pass@k on the test questions of reinforcement learning, every `rl.test_every` steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efficientbench.devices.base import Device
from efficientbench.evaluation.chat.generative import Generative
from efficientbench.evaluation.chat.questions import Questions
from efficientbench.evaluation.task import Options, Summary
from efficientbench.generation.open_run import Opened
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.job import Job
from efficientbench.training.reinforcement.questions import open_rows
from efficientbench.worker.listeners.monitoring import Measure
from efficientbench.worker.listeners.scores import Scores

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


class PassAtK(Scores):
    """Answers the test questions several times, as `evaluate --samples` does; each test draws the same numbers."""

    def __init__(self, job: Job, heartbeat: HeartbeatWriter, measure: Measure, device: Device) -> None:
        """Open the questions; the arguments are those of `Scores`.

        Raises:
            ConfigError, DataError: as `Scores` and `open_rows`.
        """
        rl = job.config.rl
        super().__init__(job, "test questions", rl.test_every, heartbeat, measure, device)
        self.options = Options(
            self.tokenizer_folder,
            limit=rl.test_limit,
            samples=rl.test_samples,
            temperature=rl.temperature,
            max_new_tokens=rl.max_new_tokens,
        )
        self.examples = open_rows("test_questions", rl.task, rl.test_questions)

    @classmethod
    def of(cls, job: Job, heartbeat: HeartbeatWriter, measure: Measure, device: Device) -> PassAtK | None:
        """Return the listener of a run; None where the run does not ask for one."""
        asked = job.config.training.objective == "rl" and job.config.rl.test_every
        return cls(job, heartbeat, measure, device) if asked else None

    def task(self, model: GPT, step: int) -> Generative:
        """Return the questions, bound to the model."""
        run, name = Opened(model, self.job.config, self.tokenizer, step, ()), self.job.config.rl.task
        questions = Questions(name, run, self.options, self.examples)
        return Generative(name.replace(":", "."), run, self.options, questions)

    def shown(self, summary: Summary) -> str:
        """Return the line to print: the share of right answers, and pass@k."""
        return ", ".join(f"{name} {value:.4f}" for name, value in summary.figures.items() if value is not None)
