"""One rank of an evaluation: `python -m efficientbench.evaluation.rank ASKED`; the launcher starts it."""

from __future__ import annotations

import logging
import os
import sys

from rich.console import Console

from efficientbench.architecture.registry import load_kinds
from efficientbench.basics.errors import EvaluationError, GenerationError
from efficientbench.evaluation.evaluate import evaluate
from efficientbench.evaluation.launch import ASKED, log_folder
from efficientbench.launchers.processes.failure import Failure, report_failure
from efficientbench.running.failures import diagnose
from efficientbench.running.rank_process import end, set_up_logging
from efficientbench.running.trained import TrainedRun

logger = logging.getLogger(__name__)


def main() -> int:
    """Score this rank's part, and report a failure to the launcher; return the exit code."""
    # The argument is JSON, from `evaluate_on_ranks`.
    asked = ASKED.validate_json(sys.argv[1])
    folder, rank = asked.options.folder, int(os.environ["RANK"])
    log_file = log_folder(folder) / f"rank_{rank}.log"
    set_up_logging(log_file)
    # Outside of `try`: the parent has already loaded the same declarations and read the same run.
    load_kinds(asked.kinds)
    job = TrainedRun.read(folder).job
    try:
        evaluate(asked.names, asked.options, asked.step, Console(soft_wrap=True, quiet=rank > 0), asked.parallel)
    except (EvaluationError, GenerationError) as error:
        report_failure(Failure("crash", f"{folder}: {error}"))
        return 1
    except Exception as error:
        logger.exception("rank %d failed", rank)
        failure = diagnose(error, job, log_file)
        report_failure(failure)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    end(main())
