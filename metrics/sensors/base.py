"""Defines what a sensor is: a source of readings of one or more devices, and of the reasons for missing ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from efficientbench.metrics.formulas.device_use import DeviceSettings

Scope = Literal["gpu", "npu", "host", "allocator", "cpu-package", "cpu-package+dram", "node", "meter"]
"""What a sensor reads.

An accelerator, the host as one device, one process's own allocator, the part of the host whose energy a meter counts
('cpu-package' to 'node'), or what a `Meter` beside the devices' own counts.
"""


@dataclass(frozen=True)
class DeviceInfo:
    """One physical device."""

    uuid: str
    """The device's identifier, the same in every process."""
    name: str
    memory_capacity_bytes: int | None
    memory_kind: str
    """How memory is counted: 'driver' (the whole device), 'pss' or 'rss' (the run's processes), 'allocated' (torch's
    allocator), 'none' (not at all)."""
    processes: tuple[int, ...] = ()
    """Ids of the processes that the readings cover; empty if they cover the whole device."""


class Sample(NamedTuple):
    """One device at one moment. None: not measured; the sensor's `unavailable` has the reason."""

    # A tuple takes a third of a frozen dataclass's time to make, and one is made at every reading.

    time_s: float
    """Time of the reading on the monitor's monotonic clock."""
    device: str
    """The device's uuid."""
    memory_used_bytes: float | None = None
    utilization: float | None = None
    """Busy fraction, 0 to 1."""
    power_w: float | None = None


@dataclass(frozen=True)
class Counters:
    """Registers that only grow; their difference between a window's edges is exact, however rare samples are."""

    energy_j: float | None = None
    busy_s: float | None = None
    """Seconds of full use: a device half busy for 10 s adds 5."""


@dataclass(frozen=True)
class Peaks:
    """The largest memory since `reset_peaks`, as far as the device itself records it."""

    peak_memory_device_bytes: int | None = None
    peak_memory_allocated_bytes: int | None = None
    peak_memory_reserved_bytes: int | None = None


ALLOCATOR_PEAKS = ("peak_memory_allocated_bytes", "peak_memory_reserved_bytes")
"""Fields of Peaks that torch's allocator alone knows."""
QUANTITIES = (
    *("memory_used_bytes", "utilization", "power_w"),
    *("energy_j", "busy_s"),
    *("peak_memory_device_bytes", *ALLOCATOR_PEAKS),
)
"""Fields of Sample, Counters and Peaks that a sensor fills, or names in `unavailable` with the reason why not."""


@dataclass(frozen=True)
class OtherUse:
    """Use of a device by something that does not belong to the run."""

    description: str
    """What uses the device; the text stays the same as long as the user does."""
    share: float | None = None
    """The fraction of the device that it takes, 0 to 1; None if unknown."""


class DeviceState(NamedTuple):
    """Temperature and clock of a device at one moment."""

    temperature_c: float
    clock_mhz: float
    """Clock of the compute cores."""
    slowed_by: tuple[str, ...]
    """What keeps the clock down."""


class Sensor(ABC):
    """Reads devices. The monitor calls it from one thread at a time.

    Any exception from `open` or later ends this sensor's series, with its text as the reason; the run goes on.
    """

    name: str
    """The sensor's name in reasons: 'nvml', 'host', 'allocator'."""
    scope: Scope
    figures: Mapping[str, str] = {}
    """Quantity that such a sensor usually reads → the figures that it serves, for `efficientbench doctor`."""
    remedy = ""
    """What would make missing quantities readable, where the reasons do not say it."""
    is_slow = True
    """Whether a reading may take longer than a few milliseconds; slow sensors get a sampling thread of their own."""
    counters_are_watched = True
    """Whether `counters` is also read every second, to detect a register that wraps around; False if it costs much."""
    unavailable: dict[str, str]
    """Field of Sample, Counters or Peaks → why this sensor never fills it; complete once `open` has returned."""

    @abstractmethod
    def open(self) -> None:
        """Find the devices.

        Raises:
            MetricsError: there is no device; the message has the reason and what would help.
        """

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """Return the devices that `open` found, in a fixed order."""

    @abstractmethod
    def sample(self, time_s: float) -> list[Sample]:
        """Return one reading, stamped `time_s`, of each device that answers."""

    def counters(self) -> dict[str, Counters]:
        """Return the growing registers by device uuid; empty if the sensor has none."""
        return {}

    def reset_peaks(self) -> None:
        """Restart the peaks from the present values."""
        return

    def peaks(self) -> dict[str, Peaks]:
        """Return the peaks by device uuid; empty if the sensor records none."""
        return {}

    def other_use(self) -> dict[str, OtherUse]:
        """Return use by others since the last call, by device uuid; called every few seconds."""
        return {}

    def settings(self) -> dict[str, DeviceSettings]:
        """Return the limits of speed and power by device uuid; called once, after `open`."""
        return {}

    def states(self) -> dict[str, DeviceState]:
        """Return the states by device uuid, where they are known; called every few seconds."""
        return {}

    def close(self) -> None:
        """Release the driver. Called once, also after a failure."""
        return


MEMORY_AND_UTILIZATION = {"memory_used_bytes": "memory (AMU)", "utilization": "utilization (PCU)"}
POWER_AND_ENERGY = {"power_w": "power (AEC)", "energy_j": "energy (J/token)"}


class Meter(Sensor):
    """A meter of energy or power beside the devices' own: of a socket, a PDU or a rack.

    Its figures stand beside the devices', under the name of its class, and are never added to them. Ranks and nodes
    that read the same uuid count it once. A reading may take long: the meter has a sampling thread of its own.
    """

    name = "meter"
    scope: Scope = "meter"
    figures = POWER_AND_ENERGY

    @cached_property
    def unavailable(self) -> dict[str, str]:  # type: ignore[override]
        """Field of Sample, Counters or Peaks → why this meter never fills it; a subclass adds its own."""
        return {name: "a meter reads power and energy alone" for name in QUANTITIES if name not in POWER_AND_ENERGY}

    @property
    def source(self) -> str:
        """The class of this meter, as `package.module:Class`."""
        return f"{type(self).__module__}:{type(self).__qualname__}"
