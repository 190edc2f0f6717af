"""Evaluate on several ranks: processes of this machine, each with its part of the model or a copy."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console

from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.schema import ParallelConfig, RunConfig
from efficientbench.devices.registry import find_device
from efficientbench.evaluation.registry import check_names
from efficientbench.evaluation.results import FOLDER
from efficientbench.evaluation.task import Options
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.running.trained import TrainedRun
from efficientbench.training.checkpoints.manifest import read_manifest


@dataclass(frozen=True)
class Asked:
    """What all ranks are told."""

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
    check_layout(config, asked.parallel, device.count(), device.memory_capacity_bytes() is None)
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


def check_layout(config: RunConfig, parallel: ParallelConfig, devices: int, oversubscribe: bool) -> None:
    """Refuse a layout in which the model of a run cannot be evaluated.

    Args:
        config: the run.
        parallel: tp and dp of the evaluation.
        devices: of this machine.
        oversubscribe: whether ranks may share a device.

    Raises:
        ConfigError: the message has every reason.
    """
    if config.model.moe is not None and parallel.tp > 1:
        raise ConfigError("--tp: the experts of this model are not split for an evaluation: leave --tp out, give --dp")
    changes = {"recompute": "none", "micro_batch_size": 1, "global_batch_size": parallel.dp}
    training = config.training.model_copy(update=changes)
    Layout.of(config.model_copy(update={"parallel": parallel, "training": training}), devices, 1, oversubscribe)
