"""Start ranks that share a model, one on each device, for `efficientbench generate --tp`.

The launcher starts them, like a run's ranks; `rank.py` is their program.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.parallel import ParallelConfig
from efficientbench.config.schema import RunConfig
from efficientbench.devices.registry import find_device
from efficientbench.generation.sampling import Sampling
from efficientbench.launchers.files import temporary_folder
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.trained import TrainedRun
from efficientbench.training.checkpoints.manifest import read_manifest


def check_shared(config: RunConfig, parallel: ParallelConfig, devices: int, oversubscribe: bool) -> None:
    """Refuse a layout in which the ranks cannot compute the forward pass of a run's model.

    Args:
        config: the run's configuration.
        parallel: the ranks' tp and dp.
        devices: the number of this machine's devices.
        oversubscribe: whether ranks may share a device.

    Raises:
        ConfigError: the layout cannot work; the message has every reason.
    """
    changes = {"recompute": "none", "micro_batch_size": 1, "global_batch_size": parallel.dp}
    training = config.training.model_copy(update=changes)
    # Without its experts, each of which is as wide as the layer that they replace: a token that all ranks of a shared
    # expert route would count twice only in gradients.
    model = config.model.model_copy(update={"moe": None})
    shared = config.model_copy(update={"model": model, "parallel": parallel, "training": training})
    try:
        Layout.of(shared, devices, 1, oversubscribe)
    except ConfigError as error:
        raise ConfigError(str(error).replace("parallel.tp", "--tp").replace("parallel.dp", "--dp")) from None


STOP_GRACE_S = 10.0
"""Seconds that ranks may take after Ctrl-C to print their unfinished texts."""


@dataclass(frozen=True)
class Request:
    """The command's arguments, which all ranks get."""

    folder: Path
    """The run's folder."""
    kinds: tuple[str, ...]
    """Declarations of variants from outside this project, see `load_kinds`."""
    step: int | None
    """The checkpoint's step; None: the newest intact checkpoint."""
    tp: int
    """Ranks that share the model."""
    texts: tuple[str, ...]
    sampling: Sampling
    max_new_tokens: int
    batch: int

    @property
    def parallel(self) -> ParallelConfig:
        """Return the layout of the ranks."""
        return ParallelConfig(tp=self.tp, dp=1)

    @property
    def log(self) -> Path:
        """Return the folder of the ranks' logs."""
        return OutputFolder(self.folder).log / "generate"


REQUEST = TypeAdapter(Request)


def generate_on_ranks(request: Request) -> int:
    """Start the ranks, wait until they have ended, and return the exit code.

    Raises:
        ConfigError: the folder is not a run's or has no such checkpoint, or `tp` ranks cannot share the model.
        DeviceError: this machine cannot use the run's device.
        LaunchError: a rank cannot be started.
    """
    run = TrainedRun.read(request.folder)
    config = run.job.config
    device = find_device(config.device, trains=False)
    check_shared(config, request.parallel, device.count(), device.memory_capacity_bytes() is None)
    checkpoint, problems = run.checkpoint(request.step)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    for name, value in device.environment(request.tp).items():
        # For the ranks, which inherit this process's environment.
        os.environ.setdefault(name, value)
    # All ranks read the same checkpoint, even if a newer one is written meanwhile.
    request = replace(request, step=read_manifest(checkpoint).step)
    with temporary_folder() as folder:
        path = folder / "request.json"
        path.write_bytes(REQUEST.dump_json(request))
        command = module_command("efficientbench.generation.rank", str(path))
        return launch(command, request.tp, None, request.log, STOP_GRACE_S)
