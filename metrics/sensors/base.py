"""What every sensor is: a source of readings of one or more devices, and of the reasons why some are missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

Scope = Literal["gpu", "npu", "host", "allocator", "cpu-package", "cpu-package+dram", "node"]
"""What a sensor's figures are of: an accelerator, the host as one device, one process's own allocator, or (the last
three) what a meter of the host's energy counts."""


@dataclass(frozen=True)
class DeviceInfo:
    """One physical device; `uuid` is the same whichever process asks."""

    uuid: str
    name: str
    memory_capacity_bytes: int | None
    memory_kind: str
    """How memory is counted: 'driver' (all of the device), 'pss' or 'rss' (processes), 'allocated' (torch's own),
    'none' (not at all)."""
    processes: tuple[int, ...] = ()
    """The processes that the readings are of; empty where they are of the whole device."""


class Sample(NamedTuple):
    """One device at one moment. None: not measured; the sensor's `unavailable` says why.

    A tuple, which takes a third of the time of a frozen dataclass to make: one is made at every reading.
    """

    time_s: float
    """On the monotonic clock of the monitor."""
    device: str
    """The device's uuid."""
    memory_used_bytes: float | None = None
    utilization: float | None = None
    """Busy fraction, 0 to 1."""
    power_w: float | None = None


@dataclass(frozen=True)
class Counters:
    """Registers that only ever grow, read at a window's edges: their difference is exact, however rare samples are."""

    energy_j: float | None = None
    busy_s: float | None = None
    """Seconds of full use: a device half busy for 10 s adds 5."""


@dataclass(frozen=True)
class Peaks:
    """The largest memory since `reset_peaks`, where the device keeps that itself."""

    used_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


QUANTITIES = (
    "memory_used_bytes",
    "utilization",
    "power_w",
    "energy_j",
    "busy_s",
    "used_bytes",
    "allocated_bytes",
    "reserved_bytes",
)
"""Fields of Sample, Counters and Peaks that a sensor fills, or names in `unavailable` with the reason why not."""


@dataclass(frozen=True)
class Foreign:
    """What is not of the run and uses a device."""

    description: str
    """The same text as long as it is the same thing."""
    share: float | None = None
    """The part of the device that it takes, 0 to 1; None where nobody can tell."""


class Sensor(ABC):
    """Reads devices. The monitor calls it from one thread at a time.

    Any exception from `open` or later ends this sensor's series, its text being the reason; the run goes on.
    """

    name: str
    """What the sensor is called in reasons: 'nvml', 'host', 'allocator'."""
    scope: Scope
    fastest_interval_s = 0.0
    """The source has nothing new more often than this."""
    is_slow = True
    """Whether a reading may take longer than a few milliseconds, as a command's does: it then has a thread of its own,
    where the quick ones share one."""
    unavailable: dict[str, str]
    """Field of Sample, Counters or Peaks → why this sensor never fills it; known once `open` has returned."""

    @abstractmethod
    def open(self) -> None:
        """Find the devices. Raises MetricsError with the reason, and what would help, where there are none."""

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """The devices found by `open`, in a fixed order."""

    @abstractmethod
    def sample(self, time_s: float) -> list[Sample]:
        """One reading of each device that answers, stamped `time_s`."""

    def counters(self) -> dict[str, Counters]:
        """The growing registers by device uuid; empty where the sensor has none."""
        return {}

    def reset_peaks(self) -> None:
        """Begin anew with the peaks."""
        return

    def peaks(self) -> dict[str, Peaks]:
        """The peaks by device uuid; empty where the sensor keeps none."""
        return {}

    def foreign(self) -> dict[str, Foreign]:
        """By device uuid, who else has used a device since the last call; called every few seconds."""
        return {}

    def close(self) -> None:
        """Let go of the driver. Called once, also after a failure."""
        return
