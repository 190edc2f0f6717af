"""Start ranks that share a model, each on a device of its own, for `efficientbench generate --tp`.

They are processes of the launcher, as those of a run; `rank.py` is what each of them does.
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
    """Refuse a layout in which ranks cannot compute the forward passes of a run's model.

    Args:
        config: the run.
        parallel: tp and dp of the ranks.
        devices: of this machine.
        oversubscribe: whether ranks may share a device.

    Raises:
        ConfigError: the message has every reason.
    """
    changes = {"recompute": "none", "micro_batch_size": 1, "global_batch_size": parallel.dp}
    training = config.training.model_copy(update=changes)
    # Without its experts, each of which is as wide as the layer that they replace: where ranks that share one all route
    # a token, only gradients would count it twice.
    model = config.model.model_copy(update={"moe": None})
    shared = config.model_copy(update={"model": model, "parallel": parallel, "training": training})
    try:
        Layout.of(shared, devices, 1, oversubscribe)
    except ConfigError as error:
        raise ConfigError(str(error).replace("parallel.tp", "--tp").replace("parallel.dp", "--dp")) from None


STOP_GRACE_S = 10.0
"""How long ranks may take after Ctrl-C to show what there is."""


@dataclass(frozen=True)
class Request:
    """What the command was asked for."""

    folder: Path
    """Of the run."""
    kinds: tuple[str, ...]
    """Declarations of variants from outside this project, as `load_kinds` takes them."""
    step: int | None
    """Of the checkpoint; None: the newest that is whole."""
    tp: int
    """Ranks."""
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
    """Start the ranks, stay until they have ended, and return the exit code.

    Raises:
        ConfigError: it is no run's folder, has no such checkpoint, or so many ranks cannot share its model.
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
    # The same checkpoint for all ranks, whatever is written meanwhile.
    request = replace(request, step=read_manifest(checkpoint).step)
    with temporary_folder() as folder:
        path = folder / "request.json"
        path.write_bytes(REQUEST.dump_json(request))
        command = module_command("efficientbench.generation.rank", str(path))
        return launch(command, request.tp, None, request.log, STOP_GRACE_S)
