"""Score the model by a task during training, such as CORE, at a fixed interval of steps."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from efficientbench.costs.model import cache_bytes
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.devices.base import Device
from efficientbench.evaluation.core.bundle import Bundle, bundle_of
from efficientbench.evaluation.core.task import Core
from efficientbench.evaluation.results import FOLDER, ResultFile, read_scores, write_summary
from efficientbench.evaluation.task import BATCH_TOKENS, ItemResult, Summary, Task
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.records.record_parts import TrainingScore
from efficientbench.model.moe import take_routing
from efficientbench.running.corpora import load_corpora
from efficientbench.running.job import Job
from efficientbench.training import groups
from efficientbench.training.events import Event, StepEnded
from efficientbench.training.trainer import Trainer
from efficientbench.training.update.optimizer import gather_weights
from efficientbench.worker.listeners.monitoring import Measure
from efficientbench.worker.listeners.recorder import Recorder

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

TRAINING = Path(FOLDER, "training")
"""Folder of the training's scores, below the run's folder."""


@contextlib.contextmanager
def evaluating(trainer: Trainer) -> Iterator[GPT]:
    """Yield this rank's part of the model in evaluation mode, with the weights of the last update.

    All ranks must call this together. The run has one stage on each rank.
    """
    gather_weights(trainer.stages)
    [stage] = trainer.stages
    stage.eval()
    # A part that is compiled for many lengths would then serve the steps too, whose one length has a faster kernel.
    fused = trainer.config.kernels.fused
    with torch.compiler.set_stance("force_eager") if fused else contextlib.nullcontext():
        yield stage.module
    stage.train()
    # What the routers counted here belongs to no step.
    take_routing(stage.module)


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


class CoreDuringTraining(Scores):
    """Scores the model by CORE, every `evaluation.core_every` steps, on a part of each task's rows."""

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


def all_scores(folder: Path) -> dict[str, list[TrainingScore]]:
    """Return the record's fields for the scores of a run, of its training and of `evaluate`."""
    return {"training_scores": read_scores(folder / TRAINING), "evaluations": read_scores(folder / FOLDER)}
