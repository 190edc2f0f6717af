"""Evaluate on several ranks of this machine, each with a part of the model or a copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from efficientbench.architecture.registry import load_kinds
from efficientbench.basics.errors import EvaluationError, GenerationError
from efficientbench.evaluation.evaluate import evaluate
from efficientbench.evaluation.registry import check_names
from efficientbench.evaluation.results import FOLDER
from efficientbench.evaluation.task import Options
from efficientbench.generation.on_ranks import Request
from efficientbench.generation.open_run import Share
from efficientbench.launchers.processes.failure import Failure
from efficientbench.running.failures import diagnose
from efficientbench.running.rank_process import Rank, Work
from efficientbench.running.trained import TrainedRun


@dataclass(frozen=True)
class Evaluation(Request):
    """The request of `efficientbench evaluate --tp --dp`."""

    work = "efficientbench.evaluation.rank"

    names: tuple[str, ...]
    """The tasks' names."""
    options: Options

    @property
    def log(self) -> Path:
        """Return the folder of the ranks' logs."""
        return self.model.folder / FOLDER / "log"

    def run(self) -> int:
        """Evaluate on the ranks, see `Request.run`. Raises ConfigError also if there is no such task."""
        check_names(list(self.names))
        return super().run()


def rank_work(job_file: Path) -> Work:
    """Return the work of an evaluation's ranks."""
    asked = Evaluation.read(job_file)
    model = asked.model
    load_kinds(model.kinds)
    job = TrainedRun.read(model.folder).job

    def do(rank: Rank) -> bool:
        console = Console(soft_wrap=True, quiet=rank.number > 0)
        evaluate(asked.names, asked.options, model.step, console, Share(model.parallel, rank))
        return False

    def meaning(error: Exception, log_file: Path) -> Failure:
        if isinstance(error, EvaluationError | GenerationError):
            return Failure("crash", f"{model.folder}: {error}")
        return diagnose(error, job, log_file)

    # What is scored is on the disk.
    return Work(asked.log, do, meaning, ends_at_once=True)
