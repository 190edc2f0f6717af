"""Merges the ranks' measurements into the run's: each step by its slowest rank, each physical device once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from efficientbench.metrics.definitions import window_length_s
from efficientbench.metrics.device_use import Disturbance
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement, RankMeasurement, RunMeasurement
from efficientbench.metrics.sensors.base import Scope

_SCOPES: tuple[Scope, ...] = ("gpu", "npu", "host")
"""Scopes of a run's figures, best first: an accelerator's are never replaced by the host's, nor mixed with them."""
_METERS: tuple[Scope, ...] = ("cpu-package", "cpu-package+dram", "node")
"""Scopes of meters of the host's energy."""
_NO_METER = "no sensor for the host's power was in use"
_NO_SENSOR = "no sensor for it was in use"
_NO_ALLOCATOR = "no allocator sensor was in use"
_NO_HOST_ALLOCATOR = "the host has no device allocator"


def merge(ranks: Sequence[RankMeasurement]) -> RunMeasurement:
    """Return the measurement of all ranks together.

    Each step's time is the largest over the ranks, and tokens are summed. A physical device seen by several ranks
    counts once, by its most complete reading. A figure over devices needs all of them: if one lacks it, the figure is
    None with that device's reason. The figures are the accelerators' if any rank has a sensor for them, even one that
    failed; else the host's.

    Raises:
        MetricsError: no rank at all, ranks that measured different steps, or different processes of one host.
    """
    if not ranks:
        raise MetricsError("there is no rank's measurement to merge")
    _require_same_steps(ranks)
    everything = _once_each(device for rank in ranks for device in rank.devices)
    scopes = {sensor.scope for rank in ranks for sensor in rank.sensors}
    scope = next((scope for scope in _SCOPES if scope in scopes), None)
    energy_scope, no_meter = _meter(scope, ranks)
    devices = _Figures(ranks, everything, scope, _NO_SENSOR)
    allocators = _Figures(ranks, everything, "allocator", _NO_HOST_ALLOCATOR if scope == "host" else _NO_ALLOCATOR)
    meters = _Figures(ranks, everything, energy_scope, no_meter)
    memory_gb = devices.all("amu_gb")
    fractions = devices.memory_fractions()
    energy_j = meters.all("energy_j")
    by_window = zip(*(meter.window_energy_j for meter in meters.devices), strict=True)
    first = ranks[0]
    zero_s = first.windows[0][0] if first.windows else 0.0
    return RunMeasurement(
        window_s=max(window_length_s(rank.windows) for rank in ranks),
        step_times_s=tuple(
            max(step.time_s for step in same) for same in zip(*(rank.steps for rank in ranks), strict=True)
        ),
        step_numbers=tuple(step.number for step in first.steps),
        tokens=sum(step.tokens for rank in ranks for step in rank.steps),
        device_scope=scope,
        device_names=tuple(device.info.name for device in devices.devices),
        memory_kind=_joined(device.info.memory_kind for device in devices.devices),
        memory_idle_gb=_mean(devices.all("memory_idle_gb")),
        amu_gb=_mean(memory_gb),
        amu_gb_max=max(memory_gb, default=None),
        amu_fraction=_mean(fractions),
        amu_fraction_max=max(fractions, default=None),
        pcu=_mean(devices.all("pcu")),
        aec_w=_mean(meters.all("aec_w")),
        power_w_sum=_sum(meters.all("aec_w", "power_w_sum")),
        energy_j=_sum(energy_j),
        energy_source=_joined(device.energy_source for device in meters.devices if device.energy_source),
        peak_used_bytes=_largest(devices.all("peak_used_bytes")),
        peak_allocated_bytes=_largest(allocators.all("peak_allocated_bytes")),
        peak_reserved_bytes=_largest(allocators.all("peak_reserved_bytes")),
        allocated_mean_gb=_mean(allocators.all("amu_gb", "allocated_mean_gb")),
        samples=_readings("samples", devices.devices, meters.devices, min),
        sample_intervals_s=_readings("sample_intervals_s", devices.devices, meters.devices, max),
        window_energy_j=tuple(map(math.fsum, by_window)) if energy_j else (),
        unavailable={**devices.unavailable, **meters.unavailable, **allocators.unavailable},
        energy_scope=energy_scope if energy_j else None,
        energy_doubt="; ".join(device.energy_doubt for device in meters.devices if device.energy_doubt) or None,
        step_begins_s=tuple(step.begin_s - zero_s for step in first.steps),
        windows=tuple((begin_s - zero_s, end_s - zero_s) for begin_s, end_s in first.windows),
        timelines=tuple(d.timeline for d in everything if d.timeline is not None and d.scope != "allocator"),
        disturbances=tuple(
            sorted((d for device in everything for d in device.disturbances), key=attrgetter("begin_s"))
        ),
        sensors=tuple(sensor for rank in ranks for sensor in rank.sensors),
    )


def _meter(scope: Scope | None, ranks: Sequence[RankMeasurement]) -> tuple[Scope | None, str]:
    """Return whose energy counts, the accelerators' or that of the host's meter, and the reason if there is none."""
    if scope != "host":
        return scope, _NO_SENSOR
    meters = [(rank, sensor) for rank in ranks for sensor in rank.sensors if sensor.scope in _METERS]
    for rank, sensor in meters:
        if sensor.failure is not None:
            return None, sensor.failure if len(ranks) == 1 else f"rank {rank.rank}: {sensor.failure}"
    scopes = sorted({sensor.scope for _, sensor in meters})
    if len(scopes) > 1:
        return None, f"the hosts' meters count different things: {', '.join(scopes)}"
    return (meters[0][1].scope if meters else None), _NO_METER


def _require_same_steps(ranks: Sequence[RankMeasurement]) -> None:
    first = ranks[0]
    numbers = [step.number for step in first.steps]
    for rank in ranks[1:]:
        if [step.number for step in rank.steps] != numbers:
            raise MetricsError(
                f"rank {first.rank} measured {len(numbers)} steps and rank {rank.rank} {len(rank.steps)}, or others by "
                "number: every rank must begin, pause and end at the same steps"
            )


def _once_each(devices: Iterable[DeviceMeasurement]) -> list[DeviceMeasurement]:
    """Return one measurement for each uuid: the one with the fewest gaps, then the most samples."""
    best: dict[str, DeviceMeasurement] = {}
    for device in devices:
        other = best.setdefault(device.info.uuid, device)
        if sorted(device.info.processes) != sorted(other.info.processes):
            raise MetricsError(
                f"ranks measured different processes of {device.info.uuid} ({list(other.info.processes)} and "
                f"{list(device.info.processes)}): give each sensor of a host the ids of all the run's processes there"
            )
        if _completeness(device) > _completeness(other):
            best[device.info.uuid] = device
    return [best[uuid] for uuid in sorted(best)]


def _completeness(device: DeviceMeasurement) -> tuple[int, int]:
    return -len(device.unavailable), sum(device.samples.values())


def _readings(
    kind: str,
    devices: Sequence[DeviceMeasurement],
    meters: Sequence[DeviceMeasurement],
    worst: Callable[[list[Any]], Any],
) -> dict[str, Any]:
    """Return the worst device's number or interval of readings, by quantity; power is the meters'."""
    found = {}
    for quantity, read_by in (("memory", devices), ("utilization", devices), ("power", meters)):
        values = [getattr(device, kind)[quantity] for device in read_by if quantity in getattr(device, kind)]
        if values:
            found[quantity] = worst(values)
    return found


class _Figures:
    """Collects figures over the devices of one scope, and the reasons for missing ones."""

    def __init__(
        self, ranks: Sequence[RankMeasurement], devices: list[DeviceMeasurement], scope: Scope | None, no_sensor: str
    ) -> None:
        self.devices = [device for device in devices if device.scope == scope]
        self.unavailable: dict[str, str] = {}
        self._no_devices = self._why_incomplete(ranks, scope) or (None if self.devices else no_sensor)

    def all(self, name: str, recorded_as: str | None = None) -> list[float]:
        """Return a figure of each device; or nothing, and record the reason, if a device is missing or lacks it.

        Args:
            name: the figure's field in `DeviceMeasurement`.
            recorded_as: its field in `RunMeasurement`; the same name by default.
        """
        recorded_as = recorded_as or name
        if self._no_devices is not None:
            self.unavailable[recorded_as] = self._no_devices
            return []
        values = []
        for device in self.devices:
            value = getattr(device, name)
            if value is None:
                reason = device.unavailable[name]
                self.unavailable[recorded_as] = reason if len(self.devices) == 1 else f"{device.info.uuid}: {reason}"
                return []
            values.append(value)
        return values

    @staticmethod
    def _why_incomplete(ranks: Sequence[RankMeasurement], scope: Scope | None) -> str | None:
        """Return the failure of a sensor that found no device: a sum would lack its devices without a trace."""
        for rank in ranks:
            if any(device.scope == scope for device in rank.devices):
                continue
            for sensor in rank.sensors:
                if sensor.scope == scope:
                    reason = sensor.failure or f"{sensor.name}: found no device"
                    return reason if len(ranks) == 1 else f"rank {rank.rank}: {reason}"
        return None

    def memory_fractions(self) -> list[float]:
        """Return AMU over capacity of each device; or nothing, and record the reason."""
        used_gb = self.all("amu_gb")
        capacities = [device.info.memory_capacity_bytes for device in self.devices]
        if not used_gb:
            self.unavailable["amu_fraction"] = self.unavailable["amu_gb"]
        elif not all(capacities):
            self.unavailable["amu_fraction"] = "a device's memory capacity is not known"
            return []
        return [gb * 1e9 / capacity for gb, capacity in zip(used_gb, capacities, strict=False) if capacity]


def longest(disturbances: Sequence[Disturbance], count: int) -> list[Disturbance]:
    """Return the `count` longest in order of time: a busy machine may have thousands, and a record must stay small."""
    kept = sorted(disturbances, key=lambda each: each.begin_s - each.end_s)[:count]
    return sorted(kept, key=attrgetter("begin_s"))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _sum(values: Sequence[float]) -> float | None:
    return math.fsum(values) if values else None


def _largest(values: Sequence[float]) -> int | None:
    return int(max(values)) if values else None


def _joined(kinds: Iterable[str]) -> str | None:
    return " and ".join(sorted(set(kinds))) or None
