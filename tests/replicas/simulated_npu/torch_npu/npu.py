"""`torch_npu.npu`, which is also `torch.npu`: one device that never has work queued.

Only names that the real namespace has (tests/unit/devices/test_torch_npu_wheel.py compares them).
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from efficientbench.devices import cuda_shim
from efficientbench.devices.cuda_shim import Event, get_rng_state, set_rng_state
from efficientbench.devices.cuda_shim import stream_context as stream

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
    "utilization",
]

DEFAULT_CHIP = "Ascend910B2"
TOTAL_MEMORY_BYTES = 64 << 30


class Stream(cuda_shim.Stream):
    """The device's only stream."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device = torch.device("npu:0")


class device(contextlib.AbstractContextManager[None]):  # noqa: N801
    """The block's current device."""

    def __init__(self, device: object) -> None:
        self.idx = device

    def __exit__(self, *exception: object) -> None:
        return None


def chip() -> str:
    """Return the simulated product; tests choose it by SIMULATED_NPU."""
    return os.environ.get("SIMULATED_NPU", DEFAULT_CHIP)


def get_device_name(device_name: object = None) -> str:
    return chip()


def get_device_properties(device_name: object = None) -> SimpleNamespace:
    return SimpleNamespace(name=chip(), total_memory=TOTAL_MEMORY_BYTES)


def get_device_capability(device: object = None) -> tuple[int, ...] | None:
    capability = os.environ.get("TORCH_NPU_DEVICE_CAPABILITY")
    return tuple(map(int, capability.split("."))) if capability else None


def is_bf16_supported(including_emulation: bool = False) -> bool:
    return re.match(r"Ascend(910B\d|910_93|950)", chip()) is not None


def is_available() -> bool:
    return True


is_initialized = is_available


def _no_operation() -> Callable[..., None]:
    """Return a function that does nothing: no work is ever queued, and nothing has to be set up."""
    return lambda *arguments, **options: None


# One function for each name, since torch._dynamo knows functions by their identity.
init, set_device, synchronize, set_stream, reset_peak_memory_stats, _lazy_init = (_no_operation() for _ in range(6))


def empty_cache() -> None:
    """Nothing is cached; a test may have each call noted, by a byte in a file."""
    if noted := os.environ.get("SIMULATED_NPU_EMPTIED"):
        with open(noted, "ab") as file:
            file.write(b"x")


def device_count() -> int:
    # Tests set the number of their ranks; each rank sees its device as npu:0.
    return int(os.environ.get("SIMULATED_NPUS", "1"))


def current_device() -> int:
    return 0


def current_stream(device: object = None) -> Stream:
    return Stream()


default_stream = current_stream


def is_current_stream_capturing() -> bool:
    return False


default_generators = (torch.default_generator,)


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def memory_allocated(device: object = None) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def memory_stats(device: object = None) -> dict[str, int]:
    return {"num_ooms": 0, "num_alloc_retries": 0}


def mem_get_info(device: object = None) -> tuple[int, int]:
    return TOTAL_MEMORY_BYTES - memory_allocated(), TOTAL_MEMORY_BYTES


def utilization(device: object = None) -> int:
    return 0


def _is_in_bad_fork() -> bool:
    return False


def _lazy_call(callback: Callable[[], Any]) -> None:
    callback()
