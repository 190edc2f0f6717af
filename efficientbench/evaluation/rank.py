"""Evaluate on several ranks of this machine, each with a part of the model or a copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from efficientbench.architecture.registry import load_kinds
from efficientbench.basics.errors import EvaluationError
from efficientbench.evaluation.evaluate import evaluate
from efficientbench.evaluation.registry import check_names
from efficientbench.evaluation.results import FOLDER
from efficientbench.evaluation.task import Options
from efficientbench.generation.on_ranks import Request
from efficientbench.generation.open_run import Share
from efficientbench.launchers.processes.failure import Failure
from efficientbench.running.rank_process import Rank, Work


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
        return self.folder / FOLDER / "log"

    def run(self) -> int:
        """Evaluate on the ranks, see `Request.run`. Raises ConfigError also if there is no such task."""
        check_names(list(self.names))
        return super().run()

    def diagnose(self, error: Exception, log_file: Path) -> Failure:
        """Return the failure that an exception on a rank means."""
        if isinstance(error, EvaluationError):
            return Failure("crash", f"{self.folder}: {error}")
        return super().diagnose(error, log_file)


def rank_work(job_file: Path) -> Work:
    """Return the work of an evaluation's ranks."""
    asked = Evaluation.read(job_file)

    def do(rank: Rank) -> bool:
        load_kinds(asked.model.kinds)
        console = Console(soft_wrap=True, quiet=rank.number > 0)
        model = asked.model
        evaluate(asked.names, asked.options, model.step, console, Share(model.parallel, rank), model.quantization)
        return False

    # What is scored is on the disk.
    return Work(asked.log, do, asked.diagnose, ends_at_once=True)
