"""The interface that every device type implements.

Together with model/kernels/ this package is the only place that names device types and their collective backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

DTYPES = ("fp32", "bf16", "fp16")
"""Compute dtypes by the names that configurations use."""


ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""Makes work start in the order in which it is queued. Megatron's tensor parallelism relies on that: it queues a
transfer before the product that hides it."""


class DeviceError(ValueError):
    """The machine lacks what the run asks for; the message is for the user."""


class Device(ABC):
    """One device type of this machine. Only methods that need torch import it, so that plans start without it."""

    type: str
    """Device type by torch's name."""
    backend: str
    """Backend of torch.distributed for this device type."""
    runtime_bytes: int
    """Memory that a rank takes beside its tensors, in bytes."""
    visibility: str | None = None
    """Environment variable that limits which devices a process sees; None where no variable does."""
    address_variable: str | None = None
    """Environment variable that tells the backend the node's own address; None where the backend chooses well."""
    remedy: str
    """What a machine needs before this device type can be used on it."""

    tried: bool = False
    """Whether trainings on such devices are known to have ended well; the table on the front page says the same."""
    draws_weights: bool = False
    """Whether the device's generator draws initial weights, the same in every layout; else the CPU's does."""

    triton: bool = False
    """Whether libraries run their Triton kernels on this device type."""
    needless: tuple[str, ...] = ()
    """Modules that libraries import wherever they are installed, and that this device type has no use for."""
    zero_overlaps: bool = False
    """Whether DeepSpeed's ZeRO sends gradients beside its backward pass; not measured on NPUs."""

    def count(self) -> int:
        """Return the number of devices that this process may use; 0 where there are none."""
        return int(self.allocator().device_count()) if self.forward_unavailable_reason() is None else 0

    def visible(self, environment: Mapping[str, str]) -> list[str]:
        """Return each usable device's name in the variable `visibility`: as the user set it, else its index."""
        count = self.count()
        listed = environment.get(self.visibility or "", "")
        names = [name.strip() for name in listed.split(",") if name.strip()]
        return names[:count] if len(names) >= count else [str(index) for index in range(count)]

    def environment(self, tensor_parallel: int) -> Mapping[str, str]:
        """Return environment variables that a run with this tensor parallelism sets, unless the user has set them."""
        return {}

    def deterministic_environment(self) -> Mapping[str, tuple[str, ...]]:
        """Return environment variables without which libraries may compute other bits in each run.

        A variable has the values that serve; a run sets the first one, unless the user has set the variable.
        """
        return {}

    def may_differ(self) -> Mapping[str, str]:
        """Return part → why its bits may differ between two deterministic runs of the same configuration."""
        return {}

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """Return why runs cannot use this device type here; None where they can."""

    def forward_unavailable_reason(self) -> str | None:
        """Return why not even forward passes can be computed here; None where they can."""
        return self.unavailable_reason()

    @abstractmethod
    def prepare(self, local_rank: int) -> torch.device:
        """Make `local_rank`'s device current and ready for the engine. Call it once, before importing megatron."""

    def group_device(self, place: torch.device, stages: int) -> torch.device | None:
        """Return the device that process groups are bound to from the start; None where they are bound to none.

        `place`: the rank's device; `stages`: the number of pipeline stages.
        """
        return None

    def fuses(self) -> bool:
        """Return whether torch.compile makes faster kernels for this device than a sequence of torch's own."""
        return False

    def synchronize(self) -> None:
        """Wait for all work that is queued on the current device."""
        self.allocator().synchronize()

    def stamp(self) -> Any:
        """Queue a time stamp and return it: the time at which the device comes to it in its queue of work."""
        event = self.allocator().Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, begin: Any, end: Any) -> float:
        """Return the seconds between two stamps, after `synchronize`."""
        return float(begin.elapsed_time(end)) / 1e3

    @abstractmethod
    def unsupported_dtypes(self) -> dict[str, str]:
        """Return dtype → why the device cannot compute in it."""

    def slow_dtypes(self) -> dict[str, str]:
        """Return dtype → why the device is far slower in it than in float32."""
        return {}

    def memory_capacity_bytes(self) -> int | None:
        """Return the memory of one device, in bytes; None where the devices use the host's memory."""
        return int(self.allocator().get_device_properties(0).total_memory)

    @abstractmethod
    def allocator(self) -> Any:
        """Return torch's namespace of the device type, such as torch.cuda; None without an allocator.

        It has `memory_allocated`, `empty_cache`, `synchronize` and their like.
        A type without one overrides `count`, `synchronize`, `stamp`, `memory_capacity_bytes` and `names`.
        """

    def names(self) -> list[str]:
        """Return the product names of the devices, in index order."""
        return [str(self.allocator().get_device_name(index)) for index in range(self.count())]

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of driver and vendor libraries, by name. The device type must be usable here."""

    def backend_unavailable_reason(self) -> str | None:
        """Return why this torch lacks the device type's collective backend; None where it has it."""
        import torch.distributed as dist

        if not dist.is_available():
            return "this torch was built without torch.distributed"
        return None if dist.is_backend_available(self.backend) else f"this torch was built without {self.backend}"

    def check(self, dtype: str) -> None:
        """Raise DeviceError where the device lacks a compute dtype, with the reason and the dtypes that it has."""
        unsupported = self.unsupported_dtypes()
        if dtype in unsupported:
            supported = ", ".join(name for name in DTYPES if name not in unsupported)
            raise DeviceError(f"training.dtype={dtype}: {unsupported[dtype]}; this device computes in {supported}")

    def dtype_warning(self, dtype: str) -> str | None:
        """Return a warning for the user where a dtype is slow on this device; None where it is not."""
        reason = self.slow_dtypes().get(dtype)
        return None if reason is None else f"training.dtype={dtype} is slow here: {reason}"
