"""Chooses the sensors that read a device, and opens one to see what it can read.

A sensor for devices of another type gets a line in `SENSORS`, from which runs, `doctor` and users' own loops choose.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from efficientbench.metrics.monitoring.measurement import SensorState
from efficientbench.metrics.monitoring.sampler import SensorSampler
from efficientbench.metrics.sensors.allocator import AllocatorSensor
from efficientbench.metrics.sensors.ascend.dcmi import DcmiSensor
from efficientbench.metrics.sensors.base import Sensor
from efficientbench.metrics.sensors.host import HostSensor
from efficientbench.metrics.sensors.nvml import NvmlSensor
from efficientbench.metrics.sensors.rapl import RaplSensor

Indices = Sequence[int] | None
"""Positions of devices among the visible ones, as torch counts them; None: all."""
Pids = Sequence[int] | None
"""All processes of the run on this host; None: this one."""

SENSORS: dict[str, Callable[[Indices, Pids], list[Sensor]]] = {
    "cuda": lambda indices, pids: [NvmlSensor(indices=indices, pids=pids)],
    "npu": lambda indices, pids: [DcmiSensor(indices, pids=pids)],
    "cpu": lambda indices, pids: [HostSensor(pids), RaplSensor()],
}
"""Device type by torch's name → the sensors that read its devices; for a CPU, the host's and its energy's."""


def device_sensors(device_type: str, indices: Indices = None, pids: Pids = None) -> list[Sensor]:
    """Return the sensors that read devices of a type; none for a type without sensors."""
    return SENSORS[device_type](indices, pids) if device_type in SENSORS else []


def local_sensors(pids: Pids = None) -> list[Sensor]:
    """Return sensors for this process's current accelerator, or without one for the host and its energy."""
    torch = _torch_with_accelerator()
    if torch is None:
        return device_sensors("cpu", pids=pids)
    kind = torch.accelerator.current_accelerator().type
    module = torch.get_device_module(kind)
    index = module.current_device()
    return [*device_sensors(kind, [index], pids), AllocatorSensor(module, index, module.get_device_name(index))]


def local_synchronize() -> Callable[[], object]:
    """Return a function that waits until the accelerator has done all its work, or returns at once if there is none."""
    torch = _torch_with_accelerator()
    return nothing if torch is None else torch.accelerator.synchronize


def examine(sensor: Sensor) -> SensorState:
    """Open a sensor, take one sample, close it, and return what it can measure here, and why not the rest."""
    sampler = SensorSampler(sensor, time.monotonic)
    sampler.open()
    sampler.close()
    return sampler.state()


def _torch_with_accelerator() -> Any:
    """Return torch if the program has imported it and it finds an accelerator, else None."""
    # Not imported here: a loop that does not use torch must not pay for its start.
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.accelerator.is_available() else None


def nothing() -> None:
    """Wait for nothing: a processor's work is done when its call returns."""
