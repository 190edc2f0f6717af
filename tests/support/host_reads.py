"""What the ranks of a pool run: a few steps, in one of which every read of a tensor by the host is noted.

On an accelerator such a read waits until the device has done all that was queued before it.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from support.tiny_training import fused_attention_outside_of_modes, tiny_training
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from efficientbench.config.schema import RunConfig

# `item`, truth and Python numbers; shapes that depend on values; comparisons that answer with a bool.
READING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero"}
READING_METHODS = {"tolist", "cpu", "numpy"}


@dataclass
class Reads:
    """Where the host read a tensor in a step, by what, and who asked."""

    before_update: list[str] = field(default_factory=list)
    """Before the last of the optimizer's updates was queued."""
    after_update: list[str] = field(default_factory=list)


def reads_of_a_step(config: RunConfig, prefix: Path, device_name: str = "cpu") -> Reads:
    """Of the second step, whose first has made what is made once; from StepStarted to StepEnded."""
    from efficientbench.training.events import Event, StepEnded, StepStarted

    reads = Reads()
    noted: list[str] = []
    watching = contextlib.ExitStack()

    def updated(*call: Any) -> None:
        reads.before_update += noted
        noted.clear()

    def listen(event: Event) -> None:
        if isinstance(event, StepStarted) and event.step == 2:
            watching.enter_context(_noted_in(noted, torch.device(device_name)))
        elif isinstance(event, StepEnded) and event.step == 2:
            watching.close()
            reads.after_update += noted

    with tiny_training(config, prefix, 2, listen, device_name=device_name) as trainer:
        trainer.train_step(1)
        for part in trainer.optimizer.chained_optimizers:
            part.optimizer.register_step_post_hook(updated)
        with fused_attention_outside_of_modes(), watching:
            trainer.train_step(2)
    return reads


@contextlib.contextmanager
def _noted_in(noted: list[str], device: torch.device) -> Iterator[None]:
    if device.type == "npu":
        with _simulated_npu(noted):
            yield
        return
    # Device and host have the same tensors here: what is read of the host's own counts, too.
    with _Methods(noted), _Operators(noted):
        yield


class _Operators(TorchDispatchMode):
    def __init__(self, noted: list[str]) -> None:
        super().__init__()
        self.noted = noted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if func.namespace == "aten" and name in READING and not _compares_generators():
            self.noted.append(_caller(name))
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, noted: list[str]) -> None:
        super().__init__()
        self.noted = noted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READING_METHODS and isinstance(args[0], torch.Tensor):
            self.noted.append(_caller(name))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _simulated_npu(noted: list[str]) -> Iterator[None]:
    """Notes what leaves the device, in whichever thread."""
    from torch_npu import device

    run: Callable[..., Any] = device.run

    def noting(function: Any, args: Any, kwargs: Any) -> Any:
        name = function._schema.name.removeprefix("aten::")
        from_device = any(isinstance(each, device.NpuTensor) for each in args)
        to_host = name == "_to_copy" and torch.device(kwargs.get("device") or "npu").type == "cpu"
        to_host |= name == "copy_" and not isinstance(args[0], device.NpuTensor)
        if from_device and (name in READING or to_host):
            noted.append(_caller(name))
        return run(function, args, kwargs)

    device.run = noting
    try:
        yield
    finally:
        device.run = run


def _compares_generators() -> bool:
    # megatron looks whether a layer has changed the state of the host's own random generator.
    return any(frame.f_code.co_name == "fork" for frame, _ in traceback.walk_stack(None))


def _caller(name: str) -> str:
    """`name`, and the lines of the engine and of ours that led to it."""
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_stack()
        if "efficientbench" in frame.filename or "megatron" in frame.filename
    ]
    return f"{name} in {' < '.join(reversed(lines[-4:]))}"
