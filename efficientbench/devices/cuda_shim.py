"""A CPU behind the names of torch.cuda, which megatron-core calls in hundreds of places.

`install` changes torch for the whole process. Call it before importing megatron. `torch.cuda.is_available()` is False
then, also on a machine with a GPU, so that code which checks first takes its CPU path.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

CPU = torch.device("cpu")


class Event:
    """An event on a device that never has work queued: it is complete when it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self._recorded_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._recorded_s = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to another."""
        return 1e3 * (end._recorded_s - self._recorded_s)

    def synchronize(self, stream: Stream | None = None) -> None:
        """Return at once."""

    wait = synchronize

    def query(self) -> bool:
        return True


class Stream:
    """The CPU's only stream; all objects are equal. A class, since other libraries use it in annotations."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device = CPU

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True

    def synchronize(self, other: Stream | Event | None = None) -> None:
        """Return at once."""

    wait_stream = wait_event = synchronize

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)


class DefaultGenerators(Sequence[torch.Generator]):
    """torch.cuda.default_generators: the CPU's one generator at every index."""

    def __getitem__(self, index: Any) -> Any:
        return torch.default_generator

    def __len__(self) -> int:
        return 1


class FactoriesOnCPU(TorchFunctionMode):
    """Makes factory calls with `device="cuda"` or `pin_memory=True` allocate plain CPU memory.

    A mode passes every call of torch through Python. Replaced factories would be faster, but `with torch.device(…)`
    knows factories by identity: with them, transformers would build on the CPU what it loads on the meta device.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs:
            device = kwargs.get("device")
            if device is not None and (isinstance(device, int) or str(device).startswith("cuda")):
                kwargs["device"] = CPU
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        return func(*args, **(kwargs or {}))


def install() -> None:
    """Replace the functions of torch.cuda that megatron calls, once per process, and factories in this thread.

    Raises:
        RuntimeError: this process uses a GPU already, which would then be taken for the CPU.
    """
    if torch.cuda.current_device is not _current_device:
        _replace_functions()
    # A mode belongs to one thread.
    if not any(isinstance(mode, FactoriesOnCPU) for mode in _get_current_function_mode_stack()):
        FactoriesOnCPU().__enter__()


def _replace_functions() -> None:
    if torch.cuda.is_initialized():
        raise RuntimeError("this process uses a GPU: a run on the CPU needs a process of its own")
    replacements: dict[str, Any] = {
        "is_available": lambda: False,
        "Stream": Stream,
        "Event": Event,
        "current_device": _current_device,
        # One function for each name, since torch._dynamo traces each by its identity.
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": stream_context,
        "device_count": lambda: 1,
        "get_device_capability": lambda device=None: (0, 0),
        "get_device_properties": _no_device_properties,
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
        "manual_seed_all": lambda seed: torch.default_generator.manual_seed(seed),
        "default_generators": DefaultGenerators(),
        "memory_allocated": lambda device=None: 0,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda callback, **options: callback(),
    }
    for name, replacement in replacements.items():
        setattr(torch.cuda, name, replacement)
    torch.cuda.random.get_rng_state = get_rng_state
    torch.cuda.random.set_rng_state = set_rng_state
    torch.Tensor.cuda = lambda self, *arguments, **options: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, device=None: self  # type: ignore[method-assign]
    torch.Tensor.type = _type_by_cuda_name  # type: ignore[method-assign,assignment]


def _current_device() -> torch.device:
    return CPU


def _no_device_properties(device: object = None) -> None:
    # torch.compile takes exactly this type of error for a machine without CUDA.
    raise RuntimeError("a CPU stands in for the CUDA device")


@contextlib.contextmanager
def stream_context(stream: object) -> Iterator[None]:
    """Run the block on the only stream."""
    yield


def get_rng_state(device: object = "cuda") -> torch.Tensor:
    """Return the state of the CPU's generator."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: object = "cuda") -> None:
    """Set the state of the CPU's generator."""
    torch.set_rng_state(new_state)


_tensor_type = torch.Tensor.type


def _type_by_cuda_name(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    # megatron's optimizers compare type names with those of CUDA tensors.
    found = _tensor_type(self, *arguments, **options)
    # FactoriesOnCPU calls this function a second time, with a name that is already replaced.
    if not isinstance(found, str) or found.startswith("torch.cuda."):
        return found
    return found.replace("torch.", "torch.cuda.", 1)
