"""The device types that a run may name, and the choice among them."""

from __future__ import annotations

from efficientbench.basics.errors import nearest
from efficientbench.devices.base import Device, DeviceError
from efficientbench.devices.cpu import CPU
from efficientbench.devices.cuda import CUDA
from efficientbench.devices.npu import NPU


def all_devices() -> list[Device]:
    """Return every known device type, accelerators first, in the order in which `auto` tries them."""
    return [CUDA(), NPU(), CPU()]


def device_called(name: str) -> Device:
    """Return the device type called `name`, whether or not this machine has one.

    Raises DeviceError: no device type has this name.
    """
    devices = {device.type: device for device in all_devices()}
    if name not in devices:
        near = nearest(name, [*devices, "auto"])
        hint = f"; did you mean {near}?" if near else ""
        raise DeviceError(f"device={name} is not one of auto, {', '.join(devices)}{hint}")
    return devices[name]


def device_of_backend(backend: str) -> Device:
    """Return the device type whose collectives use the library `backend`, like nccl."""
    return next(device for device in all_devices() if device.backend == backend)


def find_device(name: str = "auto", trains: bool = True) -> Device:
    """Return the device type called `name`; `auto` is the first accelerator that can be used, else the CPU.

    `trains`: whether it must train, or only compute forward passes, which more devices can.

    Raises DeviceError: the name is unknown, or this machine cannot use the device type, with the reason.
    """

    def reason_of(device: Device) -> str | None:
        return device.unavailable_reason() if trains else device.forward_unavailable_reason()

    if name == "auto":
        return next(device for device in all_devices() if reason_of(device) is None)
    device = device_called(name)
    reason = reason_of(device)
    if reason is not None:
        raise DeviceError(f"device={name} cannot be used here: {reason}")
    return device
