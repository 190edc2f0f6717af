"""Open a run's folder to generate with its model, in this process alone or on several ranks."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efficientbench.architecture.variant import missing
from efficientbench.basics.errors import ConfigError
from efficientbench.config.parallel import ParallelConfig
from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import KernelsConfig, RunConfig
from efficientbench.costs.model import cache_bytes
from efficientbench.costs.quantization import saved_bytes
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.devices.base import Device
from efficientbench.devices.loading import absent, loading
from efficientbench.devices.quantized import Form, form_of
from efficientbench.devices.registry import find_device
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.running.rank_process import Rank
from efficientbench.running.trained import TrainedRun, changed_code, trained_config
from efficientbench.training.checkpoints.hashing import Report

if TYPE_CHECKING:
    import torch

    from efficientbench.model.gpt import GPT

WAIT_S = 86_400.0
"""Seconds that ranks wait for each other, for example while one reads a corpus; the launcher notices one that hangs."""


@dataclass(frozen=True)
class Share:
    """This process's share of a model that several ranks hold."""

    parallel: ParallelConfig
    """The layout of the ranks."""
    rank: Rank


def _say_nothing(what: str) -> None:
    """Report to nobody, since no launcher watches this process."""


@dataclass(frozen=True)
class Opened:
    """A trained model that is ready to generate."""

    model: GPT
    config: RunConfig
    tokenizer: TextTokenizer
    step: int
    """The checkpoint's step."""
    warnings: tuple[str, ...]
    """Why newer checkpoints were skipped, and which variant's code has changed since the training."""
    report: Report = _say_nothing
    """Tells the launcher of ranks that long work makes progress; a forward pass tells it by itself."""
    form: Form | None = None
    """The form of quantized weights; None: they are in the dtype of the training."""


@contextlib.contextmanager
def opened(
    folder: Path, step: int | None = None, share: Share | None = None, quantization: Quantization | None = None
) -> Iterator[Opened]:
    """Build a run's model with the weights of a checkpoint, whatever layout wrote the checkpoint.

    Args:
        folder: the run's folder.
        step: the checkpoint's step; None: the newest intact checkpoint.
        share: the rank's share of the model, where all ranks of a launcher call this; None: this process alone.
        quantization: the form of the linear layers' weights; None: they keep the dtype of the training.

    Raises:
        ConfigError: the folder is not a run's or has no such checkpoint, or the model cannot generate, or the device
            cannot quantize so.
        CheckpointError: the checkpoint is damaged.
        DataError: the tokenizer is damaged.
        DeviceError: this machine cannot use the run's device.
    """
    run = TrainedRun.read(folder)
    cache_bytes(run.job.config.model, 1, run.job.config.training.dtype)
    form = form_here(run.job.config, quantization)
    tokenizer = run.tokenizer()
    checkpoint, problems = run.checkpoint(step)
    report = _say_nothing if share is None else share.rank.report
    with loading():
        device, place = _prepared(run.job.config, 0 if share is None else share.rank.local)
        with absent(*device.needless):
            from efficientbench.model.gpt import trained_model
            from efficientbench.training import groups
            from efficientbench.training.checkpoints.read import Weights
            from efficientbench.training.collectives import collectives_begun

    weights = Weights(checkpoint, report)
    # Without the kernels of the training, which this machine may lack.
    trained = trained_config(weights.manifest.config).model_copy(update={"kernels": KernelsConfig()})
    config = in_one_process(trained)
    with contextlib.ExitStack() as stack:
        if share is None:
            stack.enter_context(groups.one_rank(device.backend))
        else:
            parallel = share.parallel
            config = config.model_copy(update={"parallel": parallel})
            stack.enter_context(groups.world(device.backend, WAIT_S, device.group_device(place, parallel.pp)))
            stack.enter_context(groups.model_parallel(parallel, 0, WAIT_S))
            share.rank.heartbeat.collectives = collectives_begun
        model = trained_model(config, place, weights)
        _quantize(model, config, form)
        if share is not None:
            model.register_forward_hook(lambda *_: report("computing"))
        warned = (*problems, *changed_code(config.model))
        yield Opened(model, config, tokenizer, weights.manifest.step, warned, report, form)


def form_here(config: RunConfig, quantization: Quantization | None, measured: bool = False) -> Form | None:
    """Return the form of a quantization of a run's model on this machine's device. Raises ConfigError: see `form_of`.

    `measured`: whether time and energy are measured.
    """
    if quantization is None:
        return None
    device = find_device(config.device, trains=False)
    form = form_of(quantization, device.type, config.training.dtype, measured)
    if (why := missing(lambda: saved_bytes(config.model, form.dtype, form.bytes))) is not None:
        raise ConfigError(f"--weights {quantization.weights}: {why}")
    return form


def _quantize(model: GPT, config: RunConfig, form: Form | None) -> None:
    if form is None:
        return
    import torch

    from efficientbench.model.quantize import left_out, quantize

    quantize(model, config.model, form)
    if torch.distributed.get_rank() == 0:
        names = ", ".join(f"{name} ({size / 1e6:,.1f} MB)" for name, size in left_out(model).items())
        print_stderr(f"weights: {form.quantization.name} by {form.kernel.name}; left out: {names}")
        if form.kernel.quality_only:
            print_stderr(f"warning: {form.kernel.quality_only}")


@contextlib.contextmanager
def with_random_weights(config: RunConfig, quantization: Quantization | None = None) -> Iterator[GPT]:
    """Build a configuration's model with the initial weights of its training, or with these quantized.

    Raises:
        ConfigError: the model cannot generate, or the device cannot quantize so.
        DeviceError: this machine cannot use the device.
    """
    cache_bytes(config.model, 1, config.training.dtype)
    form = form_here(config, quantization)
    with loading():
        device, place = _prepared(config)
        with absent(*device.needless):
            from efficientbench.model.gpt import build_stages
            from efficientbench.training import groups

    with groups.one_rank(device.backend):
        [model] = build_stages(in_one_process(config), place)
        _quantize(model, config, form)
        yield model.eval()


def in_one_process(config: RunConfig) -> RunConfig:
    """Return a run's configuration for forward passes of any length on one rank."""
    training = config.training.model_copy(update={"recompute": "none"})
    kernels = config.kernels.model_copy(update={"fused": False})
    return config.model_copy(update={"parallel": ParallelConfig(), "kernels": kernels, "training": training})


def _prepared(config: RunConfig, local_rank: int = 0) -> tuple[Device, torch.device]:
    """Prepare the run's device. Call this before any import of Megatron, which looks for the device."""
    device = find_device(config.device, trains=False)
    device.check(config.training.dtype)
    place = device.prepare(local_rank)
    # Megatron logs at length what it would do with other devices.
    logging.getLogger("megatron").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="megatron")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    return device, place
