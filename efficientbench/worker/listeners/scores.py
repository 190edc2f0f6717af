"""Score the model by a task during training, at a fixed interval of steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from efficientbench.costs.model import cache_bytes
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.devices.base import Device
from efficientbench.evaluation.results import FOLDER, ResultFile, read_scores, write_summary
from efficientbench.evaluation.task import ItemResult, Summary, Task
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.records.record_parts import TrainingScore
from efficientbench.running.corpora import load_corpora
from efficientbench.running.job import Job
from efficientbench.training import groups
from efficientbench.training.events import Event, StepEnded
from efficientbench.worker.listeners.evaluating import evaluating
from efficientbench.worker.listeners.monitoring import Measure
from efficientbench.worker.listeners.recorder import Recorder

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT
    from efficientbench.training.trainer import Trainer

TRAINING = Path(FOLDER, "training")
"""Folder of the training's scores, below the run's folder."""


class Scores(ABC):
    """A listener of every rank: replicas divide the items, and tensor-parallel ranks score theirs together."""

    def __init__(
        self, job: Job, what: str, every: int, heartbeat: HeartbeatWriter, measure: Measure, device: Device
    ) -> None:
        """Load the tokenizer.

        Args:
            job: the run's job.
            what: the name of what is evaluated, for people.
            every: steps between evaluations.
            heartbeat: reports each batch, which may come long after the last step.
            measure: measures the training steps, before this listener; paused during an evaluation.
            device: the device type that the ranks train on.

        Raises:
            ConfigError: the model cannot decode from a cache.
        """
        cache_bytes(job.config.model, 1, job.config.training.dtype)
        self.job, self.what, self.every = job, what, every
        self.tokenizer_folder = load_corpora(job)[0].tokenizer_folder
        self.tokenizer = load_tokenizer(self.tokenizer_folder)
        self.heartbeat, self.measure, self.allocator = heartbeat, measure, device.allocator()
        self.trainer: Trainer | None = None
        """Set before training begins."""
        self.recorder: Recorder | None = None
        """The recorder on rank 0; None on the other ranks."""

    @abstractmethod
    def task(self, model: GPT, step: int) -> Task:
        """Return the task, bound to the model."""

    @abstractmethod
    def shown(self, summary: Summary) -> str:
        """Return the line to print after an evaluation."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepEnded) and event.step % self.every == 0 and self.trainer is not None:
            self.measure.monitor.pause()
            self._evaluate(event.step, self.trainer)
            self.measure.monitor.resume()

    def _evaluate(self, step: int, trainer: Trainer) -> None:
        self.heartbeat.at(step, f"evaluating {self.what}")
        results: list[ItemResult] = []
        with evaluating(trainer) as model:
            task = self.task(model, step)
            number, replicas = groups.replica()
            own = task.items()[number::replicas]
            for batch in task.score(own):
                results += batch
                self.heartbeat.at(step, f"evaluating {self.what}, {len(results):,} of {len(own):,} items")
        if self.allocator is not None:
            # Memory that the allocator keeps from the batches must not count as training's.
            self.allocator.empty_cache()
        found = {result.item: result for of_rank in gather(results, list[ItemResult]) for result in of_rank}
        if self.recorder is not None:
            self._write(step, task, found, self.recorder)

    def _write(self, step: int, task: Task, found: dict[str, ItemResult], recorder: Recorder) -> None:
        names = [item.name for item in task.items()]
        summary = task.summary(found)
        path = self.job.output / TRAINING / f"{task.name}_{step:08d}.jsonl"
        header = {"task": task.name, "step": step, "settings": dict(task.settings)}
        with ResultFile(path, header) as file:
            file.append([found[name] for name in names if name not in file.results])
        write_summary(path.with_suffix(".json"), header, len(names), summary)
        scalars = {f"{task.name}/{name}": value for name, value in summary.figures.items()}
        recorder.sinks.scalars(step, scalars)
        recorder.interruptions[step + 1] = f"the first step after an evaluation of {self.what}"
        print(f"step {step:,}: {self.shown(summary)}", flush=True)


def all_scores(folder: Path) -> dict[str, list[TrainingScore]]:
    """Return the record's fields for the scores of a run, of its training and of `evaluate`."""
    return {"training_scores": read_scores(folder / TRAINING), "evaluations": read_scores(folder / FOLDER)}
