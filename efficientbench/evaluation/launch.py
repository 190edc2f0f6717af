"""Evaluate on several ranks: processes of this machine, each with its part of the model or a copy."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console

from efficientbench.config.parallel import ParallelConfig
from efficientbench.devices.registry import find_device
from efficientbench.evaluation.registry import check_names
from efficientbench.evaluation.results import FOLDER
from efficientbench.evaluation.task import Options
from efficientbench.generation.on_ranks import check_shared
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.running.trained import TrainedRun
from efficientbench.training.checkpoints.manifest import read_manifest


@dataclass(frozen=True)
class Asked:
    """The words that all ranks get."""

    names: tuple[str, ...]
    """Of tasks."""
    options: Options
    step: int | None
    """Of the checkpoint; None: the newest that is whole."""
    tp: int = 1
    """Ranks that share a copy of the model."""
    dp: int = 1
    """Copies, which divide the items."""
    kinds: tuple[str, ...] = ()
    """Arguments that name variants from outside this project."""

    @property
    def parallel(self) -> ParallelConfig:
        """The layout of the ranks."""
        return ParallelConfig(tp=self.tp, dp=self.dp)


ASKED = TypeAdapter(Asked)


def log_folder(run_folder: Path) -> Path:
    """Return where the ranks of an evaluation write their logs."""
    return run_folder / FOLDER / "log"


def evaluate_on_ranks(asked: Asked, console: Console) -> int:
    """Evaluate on tp × dp ranks to their end; return the exit code, as `launch` does.

    Raises:
        ConfigError: there is no such task, run or checkpoint, or the layout cannot work.
        DeviceError: this machine cannot use the run's device.
        LaunchError: a rank cannot be started.
    """
    check_names(list(asked.names))
    run = TrainedRun.read(asked.options.folder)
    config = run.job.config
    device = find_device(config.device, trains=False)
    check_shared(config, asked.parallel, device.count(), device.memory_capacity_bytes() is None)
    checkpoint, problems = run.checkpoint(asked.step)
    for problem in problems:
        console.print(f"warning: {problem}")
    for name, value in device.environment(asked.tp).items():
        # For the ranks, which inherit this process's environment.
        os.environ.setdefault(name, value)
    text = ASKED.dump_json(replace(asked, step=read_manifest(checkpoint).step)).decode()
    exit_code = launch(
        module_command("efficientbench.evaluation.rank", text),
        asked.tp * asked.dp,
        None,
        log_folder(asked.options.folder),
    )
    # A rank that is killed leaves the cursor hidden, as its progress bar had it.
    console.show_cursor()
    return exit_code
