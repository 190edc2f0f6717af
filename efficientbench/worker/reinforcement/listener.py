"""Sample the rollouts before each RL step, and meter sampling apart from the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import sha256
from efficientbench.costs.model import cache_bytes
from efficientbench.data_tools.chat.find_task import code_files
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.devices.registry import find_device
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics import EfficiencyMonitor, merge
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.records.record_parts import PhaseCost, Reinforcement
from efficientbench.running.corpora import load_corpora
from efficientbench.running.job import Job
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.events import Event, StepStarted, TrainingEnded
from efficientbench.training.reinforcement.advantages import RolloutBatches
from efficientbench.training.reinforcement.questions import Questions
from efficientbench.training.reinforcement.rewards import reward_files
from efficientbench.worker.listeners.monitoring import Measure
from efficientbench.worker.listeners.recorder import Recorder
from efficientbench.worker.listeners.scores import evaluating
from efficientbench.worker.reinforcement.sampler import Sampler, StepRollouts

if TYPE_CHECKING:
    from efficientbench.training.trainer import Trainer

REWARD_STEPS = 10
"""The record's first and last reward are means over this many steps."""


@dataclass
class Totals:
    """What all attempts of a run have sampled."""

    questions: int = 0
    without_signal: int = 0
    first: list[float] = field(default_factory=list)
    """Mean rewards of the first REWARD_STEPS steps."""
    last: list[float] = field(default_factory=list)
    """Mean rewards of the last REWARD_STEPS steps."""

    def add(self, questions: int, found: StepRollouts) -> None:
        """Count the rollouts of a step."""
        self.questions += questions
        self.without_signal += found.without_signal
        self.first = [*self.first, found.mean_reward][:REWARD_STEPS]
        self.last = [*self.last, found.mean_reward][-REWARD_STEPS:]


class Rollouts:
    """A listener of every rank, before those that measure a step: they see it begin once its answers are sampled."""

    def __init__(
        self,
        job: Job,
        heartbeat: HeartbeatWriter,
        measure: Measure,
        monitor: EfficiencyMonitor,
        manifest: Manifest | None,
    ) -> None:
        """Read the questions.

        Args:
            job: the run's job.
            heartbeat: reports how many answers have ended, since sampling may take long.
            measure: measures the training steps; paused while sampling.
            monitor: measures the sampling.
            manifest: the manifest of the checkpoint to resume from; None: the run starts at step 1.

        Raises:
            ConfigError, DataError: as `Questions` and `Sampler`; or the model cannot decode from a cache, or the run
                has learned from other questions or rewards.
        """
        cache_bytes(job.config.model, 1, job.config.training.dtype)
        folder = load_corpora(job)[0].tokenizer_folder
        tokenizer = load_tokenizer(folder)
        self.questions = Questions(job.config, tokenizer, str(folder))
        self.sampler = Sampler(job.config, tokenizer, self.questions)
        self.heartbeat, self.measure, self.monitor = heartbeat, measure, monitor
        self.allocator = find_device(job.config.device).allocator()
        examples = self.questions.examples
        code = (*code_files(examples.name), *reward_files(job.config.rl.reward))
        self.files_sha256 = [sha256(path) for path in (*examples.files, *code)]
        kept = dict(manifest.progress["reinforcement"]) if manifest is not None else {}
        if kept.pop("files_sha256", self.files_sha256) != self.files_sha256:
            raise ConfigError(
                "rl.questions: the run was trained on other questions or rewards than the files hold now: "
                "--fresh starts anew"
            )
        self.totals = TypeAdapter(Totals).validate_python(kept)
        self.trainer: Trainer | None = None
        """Set before training begins."""
        self.recorder: Recorder | None = None
        """The recorder on rank 0; None on the other ranks."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted) and self.trainer is not None:
            self.measure.monitor.pause()
            self._sample(event.step, self.trainer)
            self.measure.monitor.resume()
        elif isinstance(event, TrainingEnded) and self.recorder is not None and self.totals.questions:
            print(self._shown(), flush=True)

    def _sample(self, step: int, trainer: Trainer) -> None:
        self.heartbeat.at(step, "sampling answers")
        assert isinstance(trainer.batches, RolloutBatches)
        self.monitor.resume()
        self.monitor.begin_step()
        with evaluating(trainer) as model:
            found = self.sampler.sample(model, step, partial(self.heartbeat.at, step))
        time_s = self.monitor.end_step(found.tokens if self.measure.counts_tokens else 0)
        self.monitor.pause()
        if self.allocator is not None:
            # Memory that the allocator keeps from the cache must not count as the update's.
            self.allocator.empty_cache()
        trainer.batches.rollouts = found.rollouts
        self.totals.add(self.questions.per_step, found)
        if self.recorder is not None:
            self._write(step, found, time_s, self.recorder)

    def _write(self, step: int, found: StepRollouts, time_s: float, recorder: Recorder) -> None:
        values = {
            "reward": found.mean_reward,
            "questions": self.questions.per_step,
            "without_signal": found.without_signal,
            "tokens": found.tokens,
            "time_s": time_s,
        }
        recorder.steps.write("rollouts", {"step": step, **values})
        recorder.sinks.scalars(step, {f"rollouts/{name}": value for name, value in values.items()})

    def _shown(self) -> str:
        totals = self.totals
        return (
            f"mean reward {_mean(totals.first):.4g} in the first {len(totals.first)} steps, {_mean(totals.last):.4g} "
            f"in the last {len(totals.last)}; {totals.without_signal:,} of {totals.questions:,} questions had no "
            "signal: all their answers the same reward"
        )

    def progress(self) -> dict[str, Any]:
        """Return the state that the next attempt resumes from, as plain data for the checkpoint."""
        return {"reinforcement": {**asdict(self.totals), "files_sha256": self.files_sha256}}

    def recorded(self, updates: Sequence[RankMeasurement]) -> Reinforcement:
        """Return the record's part on rollouts; all ranks must call this together.

        `updates`: every rank's measurement of the steps.
        """
        totals = self.totals
        return Reinforcement(
            questions=totals.questions,
            without_signal=totals.without_signal,
            too_long=self.questions.too_long,
            reward_first=_mean(totals.first) if totals.first else None,
            reward_last=_mean(totals.last) if totals.last else None,
            rollouts=_cost(gather(self.monitor.finish(), RankMeasurement)),
            updates=_cost(updates),
            files_sha256=self.files_sha256,
        )


def _cost(ranks: Sequence[RankMeasurement]) -> PhaseCost | None:
    """Return what the measured steps of all ranks cost; None where none was measured."""
    run = merge(ranks)
    if not run.step_times_s:
        return None
    return PhaseCost(math.fsum(run.step_times_s), run.tokens, run.energy_j, run.unavailable.get("energy_j"))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
