"""What fits this process: sensors for the device that torch computes on, and how to wait for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from efficientbench.metrics.sensors.allocator import AllocatorSensor
from efficientbench.metrics.sensors.ascend.chips import ascend_sensor
from efficientbench.metrics.sensors.base import Sensor
from efficientbench.metrics.sensors.host import HostSensor
from efficientbench.metrics.sensors.nvml import NvmlSensor
from efficientbench.metrics.sensors.rapl import RaplSensor


def local_sensors(pids: Sequence[int] | None = None) -> list[Sensor]:
    """Sensors for the accelerator that is current in this process, else for the host and its energy.

    Args:
        pids: all processes of the run on this host; this one by default.
    """
    torch = _torch_with_accelerator()
    if torch is None:
        return [HostSensor(pids), RaplSensor()]
    kind = torch.accelerator.current_accelerator().type
    module = torch.get_device_module(kind)
    index = module.current_device()
    driver = ascend_sensor([index], pids) if kind == "npu" else NvmlSensor(indices=[index], pids=pids)
    return [driver, AllocatorSensor(module, index, module.get_device_name(index))]


def local_synchronize() -> Callable[[], object]:
    """What waits until the accelerator has done all its work; nothing where there is none."""
    torch = _torch_with_accelerator()
    return _nothing if torch is None else torch.accelerator.synchronize


def _torch_with_accelerator() -> Any:
    """torch where the program has loaded it and it finds an accelerator. This package loads it for nobody."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.accelerator.is_available() else None


def _nothing() -> None:
    return None
