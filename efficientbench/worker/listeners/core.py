"""CORE of the model as it is trained, on a part of each task's rows, every so many steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from efficientbench.costs.model import cache_bytes
from efficientbench.data_tools.tokenizer import load_tokenizer
from efficientbench.devices.base import Device
from efficientbench.evaluation.core.bundle import read_bundle
from efficientbench.evaluation.core.task import Core
from efficientbench.evaluation.results import FOLDER, ResultFile, write_summary
from efficientbench.evaluation.task import BATCH_TOKENS, ItemResult, Options, Summary
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.running.corpora import load_corpora
from efficientbench.running.job import Job
from efficientbench.training import groups
from efficientbench.training.events import Event, StepEnded
from efficientbench.training.optimizer import gather_weights
from efficientbench.worker.listeners.monitoring import Measure
from efficientbench.worker.listeners.recorder import Recorder

if TYPE_CHECKING:
    from efficientbench.training.trainer import Trainer


class CoreDuringTraining:
    """A listener of every rank: replicas divide the rows, and tensor-parallel ranks score theirs together."""

    def __init__(self, job: Job, data: str, heartbeat: HeartbeatWriter, measure: Measure, device: Device) -> None:
        """Read the bundle.

        Args:
            job: the run.
            data: the bundle's folder, or one that holds it as `core/`.
            heartbeat: told of each batch, which may come long after the last step.
            measure: before it in the order of listeners; its window stands still meanwhile.
            device: of this rank.

        Raises:
            ConfigError, DataError: as `read_bundle`, or the model cannot go on from a cache.
        """
        cache_bytes(job.config.model, 1, job.config.training.dtype)
        self.every, self.limit = job.config.evaluation.core_every, job.config.evaluation.core_limit
        self.longest, self.output = job.config.model.position.longest, job.output
        self.bundle = read_bundle(Options(job.output, Path(data)).data_folder("core"), self.limit)
        self.tokenizer = load_tokenizer(load_corpora(job)[0].tokenizer_folder)
        self.heartbeat, self.measure, self.allocator = heartbeat, measure, device.allocator()
        self.trainer: Trainer | None = None
        """Set before training begins."""
        self.recorder: Recorder | None = None
        """Rank 0's."""

    @classmethod
    def of(cls, job: Job, heartbeat: HeartbeatWriter, measure: Measure, device: Device) -> CoreDuringTraining | None:
        """Return the listener of a run; None where the run does not ask for one."""
        evaluation = job.config.evaluation
        if not evaluation.core_every or evaluation.core_data is None:
            return None
        return cls(job, evaluation.core_data, heartbeat, measure, device)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepEnded) and event.step % self.every == 0 and self.trainer is not None:
            self.measure.monitor.pause()
            self._evaluate(event.step, self.trainer)
            self.measure.monitor.resume()

    def _evaluate(self, step: int, trainer: Trainer) -> None:
        self.heartbeat.at(step, "evaluating CORE")
        gather_weights(trainer.stages)
        [stage] = trainer.stages
        stage.eval()
        core = Core(stage.module, self.tokenizer, self.bundle, self.longest, self.limit, BATCH_TOKENS)
        number, replicas = groups.replica()
        own = core.items()[number::replicas]
        results: list[ItemResult] = []
        for batch in core.score(own):
            results += batch
            self.heartbeat.at(step, f"evaluating CORE, {len(results):,} of {len(own):,} rows")
        stage.train()
        # What the routers counted here is no step's.
        stage.module.take_routing()
        if self.allocator is not None:
            # What the allocator keeps of the batches is no memory of the training's.
            self.allocator.empty_cache()
        found = {result.item: result for of_rank in gather(results, list[ItemResult]) for result in of_rank}
        if self.recorder is not None:
            self._write(step, core, found, self.recorder)

    def _write(self, step: int, core: Core, found: dict[str, ItemResult], recorder: Recorder) -> None:
        names = [item.name for item in core.items()]
        summary = core.summary(found)
        path = self.output / FOLDER / "training" / f"core_{step:08d}.jsonl"
        header = {"task": "core", "step": step, "settings": dict(core.settings)}
        with ResultFile(path, header) as file:
            file.append([found[name] for name in names if name not in file.results])
        write_summary(path.with_suffix(".json"), header, len(names), summary)
        recorder.tensorboard.scalars(step, {f"core/{name}": value for name, value in summary.figures.items()})
        recorder.interruptions[step + 1] = "the first step after an evaluation of CORE"
        print(f"step {step:,}: {_shown(summary)}", flush=True)


def _shown(summary: Summary) -> str:
    core = summary.figures["core"]
    if core is not None:
        return f"CORE {core:.4f}"
    known = {name: value for name, value in summary.figures.items() if value is not None}
    return f"CORE n/a ({summary.unavailable['core']}); " + ", ".join(f"{name} {v:.3f}" for name, v in known.items())
