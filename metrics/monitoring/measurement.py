"""Holds the measurements of one rank (`RankMeasurement`) and of the run (`RunMeasurement`), and describes a run's.

Plain dataclasses of numbers and strings, which cross process boundaries by any means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from efficientbench.metrics.formulas.definitions import BYTES_PER_GB, average_latency, percentile
from efficientbench.metrics.formulas.device_use import (
    DeviceConditions,
    Disturbance,
    MachineConditions,
    MeterUse,
    RankUse,
    RankWaits,
    Timeline,
)
from efficientbench.metrics.sensors.base import DeviceInfo, Scope


@dataclass(frozen=True)
class StepTime:
    """One measured optimizer step on one rank."""

    number: int
    """Number of the step in the training, from 1, warm-up steps included; by it the ranks' steps are matched."""
    time_s: float
    """Wall time from one device synchronize to the next."""
    tokens: int
    """Tokens that this rank alone counts."""
    begin_s: float = 0.0
    """When the step began, on this rank's monotonic clock."""
    waited_s: tuple[float, float | None] | None = None
    """This step's `communication_s` and `pipeline_s` of RankWaits; None where the loop does not measure them."""


@dataclass(frozen=True)
class DeviceMeasurement:
    """One device over the measured window. None: `unavailable` has the reason, under the field's name."""

    info: DeviceInfo
    scope: Scope
    memory_idle_gb: float | None
    """Memory used at the monitor's start, the first reading."""
    amu_gb: float | None
    pcu: float | None
    aec_w: float | None
    energy_j: float | None
    energy_source: str | None
    """'counter' (a register of the device) or 'integrated power' (polled, trapezoidal)."""
    peak_memory_device_bytes: int | None
    peak_memory_allocated_bytes: int | None
    peak_memory_reserved_bytes: int | None
    samples: dict[str, int]
    """Quantity ('memory', 'utilization', 'power') → its readings inside the window; a sensor may fill one alone."""
    sample_intervals_s: dict[str, float]
    """Quantity → the mean interval between its readings, s; longer than configured if sampling is expensive."""
    unavailable: dict[str, str] = field(default_factory=dict)
    window_energy_j: tuple[float, ...] = ()
    """`energy_j` by measured interval; empty if it is None."""
    energy_doubt: str | None = None
    """Why `energy_j` may be wrong; None: nothing speaks against it."""
    timeline: Timeline | None = None
    disturbances: tuple[Disturbance, ...] = ()
    conditions: DeviceConditions | None = None
    """Conditions of an accelerator; None for other devices."""
    power_idle_w: float | None = None
    """Mean power before the device had work; None: not measured."""
    source: str = ""
    """The class of the `Meter` that read it, as `package.module:Class`; empty for other sensors."""

    @property
    def amu_fraction(self) -> float | None:
        """Return `amu_gb` over the device's capacity; None where one of them is not known."""
        capacity_bytes = self.info.memory_capacity_bytes
        return self.amu_gb * BYTES_PER_GB / capacity_bytes if self.amu_gb is not None and capacity_bytes else None


@dataclass(frozen=True)
class SensorState:
    """What one sensor measured, and why not the rest."""

    name: str
    scope: Scope
    failure: str | None
    """Why it did not open, or stopped; None: it worked to the end."""
    measures: tuple[str, ...] = ()
    """Fields of Sample, Counters and Peaks that it fills here."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """The other fields → why not."""
    sample_interval_s: float | None = None
    """The mean interval achieved, s; None before a second sample."""
    source: str = ""
    """The class of a `Meter`, as `package.module:Class`; empty for other sensors."""


@dataclass(frozen=True)
class RankMeasurement:
    """Everything that one rank's monitor measured."""

    rank: int
    windows: tuple[tuple[float, float], ...]
    """Measured intervals on this rank's monotonic clock, s."""
    steps: tuple[StepTime, ...]
    devices: tuple[DeviceMeasurement, ...]
    sensors: tuple[SensorState, ...]
    machine: MachineConditions | None = None
    """The machine's conditions at the monitor's start; None: not read."""


@dataclass(frozen=True)
class RunMeasurement:
    """All ranks together, each physical device once. None: `unavailable` has the reason, under the field's name."""

    window_s: float
    step_times_s: tuple[float, ...]
    """Time of each measured step, the largest over the ranks."""
    step_numbers: tuple[int, ...]
    """Numbers of the same steps in the training, from 1."""
    tokens: int
    device_scope: Scope | None
    """The kind of device of the figures below: 'gpu', 'npu' or 'host'."""
    device_names: tuple[str, ...]
    """One name for each physical device measured."""
    memory_kind: str | None
    """How used memory was counted: see `DeviceInfo`."""
    memory_idle_gb: float | None
    amu_gb: float | None
    """Mean over the devices, as are the fraction, `pcu` and `aec_w`."""
    amu_gb_max: float | None
    amu_fraction: float | None
    amu_fraction_max: float | None
    pcu: float | None
    aec_w: float | None
    power_w_sum: float | None
    energy_j: float | None
    energy_source: str | None
    peak_memory_device_bytes: int | None
    """Peak of the device that used most, as are the allocator's two peaks."""
    peak_memory_allocated_bytes: int | None
    peak_memory_reserved_bytes: int | None
    memory_allocated_mean_gb: float | None
    samples: dict[str, int]
    """Quantity ('memory', 'utilization', 'power') → its readings inside the window, of the device with fewest."""
    sample_intervals_s: dict[str, float]
    """Quantity → the longest mean interval of a device between its readings, s."""
    unavailable: dict[str, str]
    window_energy_j: tuple[float, ...] = ()
    """`energy_j` by measured interval, over all devices; empty if it is None."""
    energy_scope: str | None = None
    """The source of energy and power: 'gpu', 'npu', 'cpu-package', 'cpu-package+dram' or 'node'."""
    energy_doubt: str | None = None
    """Why `energy_j` may be wrong; None: nothing speaks against it."""
    step_begins_s: tuple[float, ...] = ()
    """When each step began on the first rank, s from the opening of the measured window."""
    windows: tuple[tuple[float, float], ...] = ()
    """The measured intervals (begin, end), s from the opening of the first."""
    timelines: tuple[Timeline, ...] = ()
    """Timeline of each physical device; torch's allocators, one for each rank, have none here."""
    disturbances: tuple[Disturbance, ...] = ()
    """The times in which others used a device, in order."""
    sensors: tuple[SensorState, ...] = ()
    """What each sensor of each rank measured."""
    waits: tuple[RankWaits, ...] = ()
    """Every rank's waits; empty: `unavailable` has the reason."""
    rank_uses: tuple[RankUse, ...] = ()
    """Every rank's use of its accelerator; empty for a single rank, and where no step was measured."""
    power_idle_w: float | None = None
    """Mean power of all devices together before they had work."""
    device_conditions: tuple[DeviceConditions, ...] = ()
    """Conditions of each accelerator, in the order of the ranks that compute on them."""
    machine_conditions: tuple[MachineConditions, ...] = ()
    """Conditions of the ranks' machines; ranks with the same conditions share an entry."""
    meters: tuple[MeterUse, ...] = ()
    """What meters beside the devices' own counted, each once."""


def describe(run: RunMeasurement) -> str:
    """Return step time, throughput, memory, utilization and energy in a line each; 'n/a' and the reason if absent."""
    times = run.step_times_s
    if not times:
        return "no step was measured"

    median_ms, p90_ms = percentile(times, 50) * 1e3, percentile(times, 90) * 1e3
    lines = {
        "steps": f"{len(times)} measured, {average_latency(times) * 1e3:,.1f} ms each "
        f"(half under {median_ms:,.1f} ms, nine of ten under {p90_ms:,.1f} ms)",
        "throughput": f"{run.tokens / math.fsum(times):,.0f} tokens/s",
    }
    return table_of(run, lines)


def table_of(run: RunMeasurement, lines: Mapping[str, str]) -> str:
    """Return devices, the given lines, memory, utilization and energy by their titles, and a line for each meter."""

    def absent(name: str) -> str:
        return f"n/a ({run.unavailable.get(name, 'not measured')})"

    devices = ", ".join(f"{run.device_names.count(name)} × {name}" for name in sorted(set(run.device_names)))
    figures = {
        "memory": absent("amu_gb") if run.amu_gb is None else _memory(run),
        "utilization": absent("pcu") if run.pcu is None else f"{run.pcu:.1%}",
        "energy": absent("energy_j") if run.energy_j is None else _energy(run),
    }
    told = [f"{name:<12} {text}" for name, text in {"devices": devices or "n/a", **lines, **figures}.items()]
    return "\n".join([*told, *(f"{'meter':<12} {meter}" for meter in run.meters)])


def _memory(run: RunMeasurement) -> str:
    share = "" if run.amu_fraction is None else f" ({run.amu_fraction:.1%} of the capacity)"
    peak = run.peak_memory_device_bytes
    most = "" if peak is None else f", at most {peak / BYTES_PER_GB:,.2f} GB"
    return f"{run.amu_gb:,.2f} GB{share}{most}"


def _energy(run: RunMeasurement) -> str:
    per_token = f"{run.energy_j / run.tokens:.4g} J/token, " if run.energy_j and run.tokens else ""
    return f"{per_token}{run.energy_j:,.1f} J at {run.power_w_sum:,.1f} W ({run.energy_scope}, {run.energy_source})"
