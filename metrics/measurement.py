"""What was measured, as plain data: by one rank (`RankMeasurement`), and by the whole run (`RunMeasurement`).

Plain dataclasses of numbers and strings, so that they cross process boundaries by any means.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepTime:
    """One measured optimizer step on one rank."""

    number: int
    """Counted from 1 since the monitor's start, warm-up steps included, so that ranks can be matched."""
    time_s: float
    """Wall time from a device synchronize to the next."""
    tokens: int
    """Tokens that this rank alone answers for."""


@dataclass(frozen=True)
class DeviceMeasurement:
    """One device over the measured window. None: `unavailable` says why, under the field's name."""

    uuid: str
    name: str
    scope: str
    """'gpu', 'npu', 'host' or 'allocator'."""
    sensor: str
    memory_capacity_bytes: int | None
    memory_idle_bytes: float | None
    """The first reading, taken at the monitor's start."""
    memory_mean_bytes: float | None
    memory_peak_bytes: float | None
    """The largest sample inside the window."""
    utilization: float | None
    energy_j: float | None
    energy_source: str | None
    """'counter' (a register of the device) or 'integrated power' (polled, trapezoidal)."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    samples: int
    """Samples inside the window."""
    sample_interval_s: float | None
    """The mean interval achieved inside the window; longer than asked for where sampling is costly."""
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RankMeasurement:
    """Everything that one rank's monitor measured."""

    rank: int
    windows: tuple[tuple[float, float], ...]
    """Measured intervals on this rank's monotonic clock, s."""
    steps: tuple[StepTime, ...]
    devices: tuple[DeviceMeasurement, ...]
    sensor_failures: dict[str, str]
    """Sensor name → why it gave nothing, or stopped."""
    warmup_steps: int


@dataclass(frozen=True)
class RunMeasurement:
    """All ranks together, each physical device once. None: `unavailable` says why, under the field's name."""

    ranks: int
    window_s: float
    step_times_s: tuple[float, ...]
    """The largest over the ranks, step by step."""
    tokens: int
    scope: str | None
    """What the device figures below are of: 'gpu', 'npu' or 'host'."""
    device_names: tuple[str, ...]
    """One name for each physical device measured."""
    memory_mean_bytes: float | None
    memory_mean_bytes_max: float | None
    memory_fraction: float | None
    memory_fraction_max: float | None
    memory_idle_bytes: float | None
    memory_peak_bytes: float | None
    utilization: float | None
    power_w: float | None
    """Mean over the devices."""
    power_w_sum: float | None
    energy_j: float | None
    energy_scope: str | None
    energy_source: str | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    allocated_mean_bytes: float | None
    sample_interval_s: float | None
    unavailable: dict[str, str]
