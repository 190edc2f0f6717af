"""Reads the memory that torch's device allocator has given to this process."""

from __future__ import annotations

import os
from typing import Protocol

from efficientbench.metrics.sensors.base import ALLOCATOR_PEAKS, DeviceInfo, Peaks, Sample, Scope, Sensor
from efficientbench.metrics.sensors.host import host_uuid


class DeviceMemory(Protocol):
    """The memory functions of a torch device module: `torch.cuda` and `torch.npu` are such objects."""

    def memory_allocated(self, device: int, /) -> int: ...
    def max_memory_allocated(self, device: int, /) -> int: ...
    def max_memory_reserved(self, device: int, /) -> int: ...
    def reset_peak_memory_stats(self, device: int, /) -> None: ...


class AllocatorSensor(Sensor):
    """Allocated and reserved bytes of this process on one device; peaks are exact and cover the measured window alone.

    They miss other processes, the driver's context and libraries' own buffers, which device-wide sensors see.

    Args:
        memory: the device module; an argument, so that this package names no device and imports no torch.
        device: the device's index as torch counts it.
        device_name: the device's name for the record.
    """

    name = "allocator"
    scope: Scope = "allocator"
    is_slow = False
    figures = dict(zip(ALLOCATOR_PEAKS, ("peak allocated memory", "peak reserved memory"), strict=True))

    def __init__(self, memory: DeviceMemory, device: int, device_name: str) -> None:
        reason = "the allocator knows memory only"
        self.unavailable = {"utilization": reason, "power_w": reason, "energy_j": reason}
        self._memory = memory
        self._device = device
        self._info = DeviceInfo(f"ALLOCATOR-{host_uuid()}-{os.getpid()}-{device}", device_name, None, "allocated")

    def open(self) -> None:
        self._memory.memory_allocated(self._device)

    def devices(self) -> list[DeviceInfo]:
        return [self._info]

    def sample(self, time_s: float) -> list[Sample]:
        return [Sample(time_s, self._info.uuid, self._memory.memory_allocated(self._device))]

    def reset_peaks(self) -> None:
        self._memory.reset_peak_memory_stats(self._device)

    def peaks(self) -> dict[str, Peaks]:
        peaks = Peaks(
            peak_memory_allocated_bytes=self._memory.max_memory_allocated(self._device),
            peak_memory_reserved_bytes=self._memory.max_memory_reserved(self._device),
        )
        return {self._info.uuid: peaks}
