"""Runs one fine-tuning several times with consecutive seeds, each in a folder of its own below the run's."""

from __future__ import annotations

import contextlib
from pathlib import Path

from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.run import finetune
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.records.record import read_record
from efficientbench.running.output_folder import OutputFolder


def run_repeats(config: FinetuneConfig, mode: str, repeats: int, fresh: bool = False) -> int:
    """Train, measure and record `config` with consecutive seeds; return the first exit code that is not 0.

    A repeat has its own seed of new weights and of the order; what is held out is the same. One whose folder holds the
    complete record of the same configuration is kept.
    """
    for index in range(repeats):
        training = config.training.model_copy(update={"seed": config.training.seed + index})
        curriculum = config.curriculum.model_copy(update={"seed": config.curriculum.seed + index})
        each = config.model_copy(update={"training": training, "curriculum": curriculum})
        folder = OutputFolder(Path(config.output).absolute() / config.name / f"seed_{training.seed}")
        done = _is_complete(folder, each)
        state = f"complete, kept ({folder.record})" if done else "trains"
        print(f"repeat {index + 1} of {repeats}, seed {training.seed}: {state}", flush=True)
        if not done and (exit_code := finetune(each, mode, folder, fresh)):
            return exit_code
    return 0


def _is_complete(folder: OutputFolder, config: FinetuneConfig) -> bool:
    with contextlib.suppress(MetricsError):
        record = read_record(folder.record)
        return record.status == "completed" and record.config == config.model_dump(mode="json")
    return False
