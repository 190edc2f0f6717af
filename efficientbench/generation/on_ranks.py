"""Generate or evaluate on several ranks of this machine, which share a run's model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import TypeAdapter

from efficientbench.basics.errors import ConfigError, GenerationError, LackOfMemoryError
from efficientbench.config.layout import Layout
from efficientbench.config.parallel import ParallelConfig
from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import FaultsConfig, RunConfig
from efficientbench.devices.registry import find_device
from efficientbench.generation.sampling import Sampling
from efficientbench.launchers.files import temporary_folder
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.running.failures import FULL, diagnose, ran_out_of_memory, users_mistake
from efficientbench.running.kind import set_for_ranks
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.ranks import run_ranks
from efficientbench.running.trained import TrainedRun
from efficientbench.training.checkpoints.manifest import read_manifest

if TYPE_CHECKING:
    from typing_extensions import Self


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


@dataclass(frozen=True)
class SharedModel:
    """The model of a run, and how ranks share it."""

    kinds: tuple[str, ...] = ()
    """Declarations of variants from outside this project, see `load_kinds`."""
    step: int | None = None
    """The checkpoint's step; None: the newest intact checkpoint."""
    tp: int = 1
    """Ranks that share a copy of the model."""
    dp: int = 1
    """Copies of the model, which divide the work."""
    quantization: Quantization | None = None
    """The form of the linear layers' weights; None: they keep the dtype of the training."""

    @property
    def parallel(self) -> ParallelConfig:
        """Return the layout of the ranks."""
        return ParallelConfig(tp=self.tp, dp=self.dp)


@dataclass(frozen=True)
class Request(ABC):
    """The arguments of a command whose ranks share a run's model; all ranks read them as JSON."""

    work: ClassVar[str]
    """The module of the ranks' work, see `run_ranks`."""

    model: SharedModel
    folder: Path
    """The folder of the run whose model the ranks share."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """Return the folder of the ranks' logs."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the request that `run` wrote."""
        return TypeAdapter(cls).validate_json(path.read_bytes())

    def run(self) -> int:
        """Start the ranks, wait until they have ended, and return the exit code of `launch`.

        Raises:
            ConfigError: the folder is not a run's or has no such checkpoint, or the ranks cannot share the model.
            DeviceError: this machine cannot use the run's device.
            LaunchError: a rank cannot be started.
        """
        model = self.model
        run = TrainedRun.read(self.folder)
        config = run.job.config
        device = find_device(config.device, trains=False)
        check_shared(config, model.parallel, device.count(), device.memory_capacity_bytes() is None)
        checkpoint, problems = run.checkpoint(model.step)
        for problem in problems:
            print_stderr(f"warning: {problem}")
        set_for_ranks(device.environment(model.tp))
        # All ranks read the same checkpoint, even if a newer one is written meanwhile.
        request = replace(self, model=replace(model, step=read_manifest(checkpoint).step))
        with temporary_folder() as folder:
            path = folder / "request.json"
            path.write_bytes(TypeAdapter(type(self)).dump_json(request))
            # Not the limits of the training, whose steps have another length.
            return run_ranks(self.work, path, model.tp * model.dp, self.log, FaultsConfig())

    def diagnose(self, error: Exception, log_file: Path) -> Failure:
        """Return the failure that an exception on a rank means. `log_file` holds its traceback."""
        if isinstance(error, GenerationError):
            return Failure("non_finite", f"{self.folder}: {error}")
        if isinstance(error, LackOfMemoryError):
            return Failure("out_of_memory", str(error))
        if ran_out_of_memory(error):
            return Failure("out_of_memory", f"out of memory for the weights: a --tp above {self.model.tp} may fit")
        return diagnose(error, TrainedRun.read(self.folder).job, log_file)


@dataclass(frozen=True)
class Generation(Request):
    """The request of `efficientbench generate --tp`."""

    work = "efficientbench.generation.rank"

    texts: tuple[str, ...]
    sampling: Sampling
    max_new_tokens: int
    batch: int

    @property
    def log(self) -> Path:
        """Return the folder of the ranks' logs."""
        return OutputFolder(self.folder).log / "generate"

    def diagnose(self, error: Exception, log_file: Path) -> Failure:
        """Return the failure that an exception on a rank means, which writes nothing but the texts."""
        if isinstance(error, BrokenPipeError):
            return users_mistake(OSError("the output was closed before all texts were complete"))
        if isinstance(error, OSError) and error.errno in FULL:
            return users_mistake(error)
        return super().diagnose(error, log_file)
