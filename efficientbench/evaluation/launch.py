"""Evaluate on several ranks of this machine, each with a part of the model or a copy."""

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
    """The command's arguments, which all ranks get."""

    names: tuple[str, ...]
    """The tasks' names."""
    options: Options
    step: int | None
    """The checkpoint's step; None: the newest intact checkpoint."""
    tp: int = 1
    """Ranks that share a copy of the model."""
    dp: int = 1
    """Replicas of the model, which divide the items."""
    kinds: tuple[str, ...] = ()
    """Declarations of variants from outside this project, see `load_kinds`."""

    @property
    def parallel(self) -> ParallelConfig:
        """The layout of the ranks."""
        return ParallelConfig(tp=self.tp, dp=self.dp)


ASKED = TypeAdapter(Asked)


def log_folder(run_folder: Path) -> Path:
    """Return the folder of the ranks' logs."""
    return run_folder / FOLDER / "log"


def evaluate_on_ranks(asked: Asked, console: Console) -> int:
    """Evaluate on tp × dp ranks, and wait until they have ended; return the exit code of `launch`.

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
    # A killed rank leaves the cursor hidden, which its progress bar had hidden.
    console.show_cursor()
    return exit_code
