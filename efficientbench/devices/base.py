"""The interface of a device type, and which one a run gets.

Together with model/kernels/ this package is the only place that names device types and their collective backends.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from efficientbench.devices.errors import DeviceError

if TYPE_CHECKING:
    import torch

DTYPES = ("fp32", "bf16", "fp16")
"""Compute dtypes by the names that configurations use."""


class Device(ABC):
    """One device type of this machine. Methods that need torch import it; finding and counting need not."""

    type: str
    """Device type by torch's name."""
    backend: str
    """Backend of torch.distributed for this device type."""
    telemetry: str
    """What tells memory, utilization and power of these devices: 'nvml', 'ascend' or 'host'."""
    runtime_bytes: int
    """Memory that a rank takes beside its tensors."""
    visibility: str | None = None
    """The environment variable that limits which of the devices a process sees; None where there is none."""
    remedy: str
    """What would make this device type usable on a machine where it is not."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Environment variables that ranks should find, unless the user has set them."""

    @abstractmethod
    def count(self) -> int:
        """Devices that this process may use; 0 where there are none."""

    def visible(self, environment: Mapping[str, str]) -> list[str]:
        """What names each usable device in the variable `visibility`: as it says already, else their numbers."""
        count = self.count()
        listed = environment.get(self.visibility or "", "")
        named = [name.strip() for name in listed.split(",") if name.strip()]
        return named[:count] if len(named) >= count else [str(index) for index in range(count)]

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """Why runs cannot use this device type here, or None."""

    @abstractmethod
    def prepare(self, local_rank: int) -> torch.device:
        """Make `local_rank`'s device current and ready for the engine; called once, before megatron is imported."""

    def fuses(self) -> bool:
        """Whether torch.compile makes kernels for this device that are faster than torch's own, one after another."""
        return False

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work that was queued on the current device."""

    @abstractmethod
    def unsupported_dtypes(self) -> dict[str, str]:
        """Compute dtypes that the device lacks, each with its reason."""

    def slow_dtypes(self) -> dict[str, str]:
        """Compute dtypes that the device computes in, but far more slowly than in float32, each with its reason."""
        return {}

    @abstractmethod
    def memory_capacity_bytes(self) -> int | None:
        """Memory of one device, in bytes; None where the host's memory is the device's."""

    @abstractmethod
    def allocator(self) -> Any:
        """torch's namespace with `memory_allocated` and its like for this device type; None where there is none."""

    @abstractmethod
    def names(self) -> list[str]:
        """Product names of the devices, in index order."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of driver and vendor libraries, by name, of a device type that can be used here."""

    def backend_unavailable_reason(self) -> str | None:
        """Why this torch lacks the device type's collective backend, or None."""
        import torch.distributed as dist

        if not dist.is_available():
            return "this torch was built without torch.distributed"
        return None if dist.is_backend_available(self.backend) else f"this torch was built without {self.backend}"

    def check(self, dtype: str) -> None:
        """Refuse a dtype that the device lacks.

        Raises:
            DeviceError: with the reason and the dtypes that would do.
        """
        unsupported = self.unsupported_dtypes()
        if dtype in unsupported:
            supported = ", ".join(name for name in DTYPES if name not in unsupported)
            raise DeviceError(f"training.dtype={dtype}: {unsupported[dtype]}; this device computes in {supported}")

    def dtype_warning(self, dtype: str) -> str | None:
        """What people must know before they compute in a dtype; None where there is nothing."""
        reason = self.slow_dtypes().get(dtype)
        return None if reason is None else f"training.dtype={dtype} is slow here: {reason}"


def all_devices() -> list[Device]:
    """Every known device type, accelerators first, in the order in which `auto` tries them."""
    from efficientbench.devices.cpu import CPU
    from efficientbench.devices.cuda import CUDA
    from efficientbench.devices.npu import NPU

    return [CUDA(), NPU(), CPU()]


def find_device(name: str = "auto") -> Device:
    """The device type called `name`; `auto` is the first accelerator that can be used, else the CPU.

    Raises:
        DeviceError: an unknown name, or a device type that this machine cannot use, with the reason.
    """
    if name == "auto":
        return next(device for device in all_devices() if device.unavailable_reason() is None)
    device = device_called(name)
    reason = device.unavailable_reason()
    if reason is not None:
        raise DeviceError(f"device={name} cannot be used here: {reason}")
    return device


def device_called(name: str) -> Device:
    """The device type called `name`, whether or not this machine has one.

    Raises:
        DeviceError: there is none of this name.
    """
    devices = {device.type: device for device in all_devices()}
    if name not in devices:
        near = difflib.get_close_matches(name, [*devices, "auto"], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise DeviceError(f"device={name} is not one of auto, {', '.join(devices)}{hint}")
    return devices[name]
