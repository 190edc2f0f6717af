"""torch.cuda of a device that has no memory: what Megatron asks of it is answered, what waits for it is noted."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch

DEVICE = torch.device("cuda", 0)
WAITS: list[str] = []
"""What waited for the device, in order."""
CAPABILITY = (9, 0)
"""Of an H200, which the properties are."""
PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H200",
    total_memory=150_754_820_096,
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    L2_cache_size=62_914_560,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472,
    gcnArchName="",
    uuid="0",
)


class Event:
    """An event that has happened."""

    def __init__(self, **options: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        """Record nothing."""

    wait = record

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        WAITS.append("event")


class Stream:
    """The only stream."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device = DEVICE

    def wait_stream(self, other: object) -> None:
        """Streams order work on the device: no host waits."""

    wait_event = wait_stream

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def synchronize(self) -> None:
        WAITS.append("stream")


@contextlib.contextmanager
def _stream(stream: object) -> Iterator[None]:
    yield


OPERATORS = torch.library.Library("aten", "IMPL")
OPERATORS.impl("silu_backward", lambda grad, x: torch.empty_like(x), "CUDA")
"""Builds of torch without CUDA would compute it by eight operators."""


def install() -> None:
    """Replace the names of torch.cuda, for the whole process."""
    PROPERTIES.major, PROPERTIES.minor = CAPABILITY
    names: dict[str, Any] = {
        "Event": Event,
        "Stream": Stream,
        "stream": _stream,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device_count": lambda: 1,
        "synchronize": lambda device=None: WAITS.append("device"),
        "empty_cache": lambda: None,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_name": lambda device=None: PROPERTIES.name,
        "get_rng_state": lambda device="cuda": torch.empty(16, dtype=torch.uint8),
        "set_rng_state": lambda new_state, device="cuda": None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "default_generators": [torch.default_generator],
        "memory_allocated": lambda device=None: 0,
        "is_current_stream_capturing": lambda: False,
        "_lazy_init": lambda: None,
        "_get_device_properties": lambda device: PROPERTIES,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "_lazy_call": lambda callback, **options: None,
    }
    for name, value in names.items():
        setattr(torch.cuda, name, value)
    torch.cuda.random.get_rng_state = names["get_rng_state"]
    torch.cuda.random.set_rng_state = names["set_rng_state"]
