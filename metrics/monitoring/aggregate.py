"""Merges the ranks' measurements into the run's: each step by its slowest rank, each physical device once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import fmean
from typing import Any

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.definitions import window_length_s
from efficientbench.metrics.formulas.device_use import DeviceConditions, Disturbance, MachineConditions, RankWaits
from efficientbench.metrics.monitoring.by_rank import rank_uses
from efficientbench.metrics.monitoring.idle_power import NOT_READ
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement, RankMeasurement, RunMeasurement
from efficientbench.metrics.monitoring.meters import meter_uses
from efficientbench.metrics.sensors.base import Scope

_SCOPES: tuple[Scope, ...] = ("gpu", "npu", "host")
"""Scopes of a run's figures, best first: an accelerator's are never replaced by the host's, nor mixed with them."""
_METERS: tuple[Scope, ...] = ("cpu-package", "cpu-package+dram", "node")
"""Scopes of meters of the host's energy."""
_NO_DEVICES: tuple[Scope, ...] = ("allocator", "meter")
"""Scopes that are no device of a run."""
_NO_METER = "no sensor for the host's power was in use"
_NO_SENSOR = "no sensor for it was in use"


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
    no_allocator = "the host has no device allocator" if scope == "host" else "no allocator sensor was in use"
    devices = _Figures(_OF_DEVICES, ranks, everything, scope, _NO_SENSOR)
    allocators = _Figures(_OF_ALLOCATORS, ranks, everything, "allocator", no_allocator)
    meters = _Figures(_OF_METERS, ranks, everything, energy_scope, no_meter)
    unavailable = {**devices.unavailable, **meters.unavailable, **allocators.unavailable}
    waits = tuple(each for each in map(_waits, ranks) if each is not None)
    if not waits:
        one = len(ranks) == 1
        unavailable["waits"] = "a single rank waits for no other" if one else "nobody measured how long ranks waited"
    if scope is None:
        unavailable["device_scope"] = "no sensor of a device was in use"
    has_energy = "energy_j" not in unavailable
    if not has_energy:
        unavailable["energy_scope"] = unavailable["energy_j"]
    by_window = zip(*(meter.window_energy_j for meter in meters.devices), strict=True)
    return RunMeasurement(
        **devices.values,
        **allocators.values,
        **meters.values,
        **_steps(ranks),
        device_scope=scope,
        device_names=tuple(device.info.name for device in devices.devices),
        samples=_readings("samples", devices.devices, meters.devices, min),
        sample_intervals_s=_readings("sample_intervals_s", devices.devices, meters.devices, max),
        window_energy_j=tuple(map(math.fsum, by_window)) if has_energy else (),
        unavailable=unavailable,
        energy_scope=energy_scope if has_energy else None,
        energy_doubt="; ".join(device.energy_doubt for device in meters.devices if device.energy_doubt) or None,
        timelines=tuple(d.timeline for d in everything if d.timeline is not None and d.scope not in _NO_DEVICES),
        disturbances=tuple(
            sorted((d for device in everything for d in device.disturbances), key=attrgetter("begin_s"))
        ),
        sensors=tuple(sensor for rank in ranks for sensor in rank.sensors),
        waits=waits,
        rank_uses=rank_uses(ranks, [] if scope == "host" else devices.devices),
        device_conditions=_device_conditions(ranks),
        machine_conditions=_machine_conditions(ranks),
        meters=meter_uses(ranks, everything),
    )


def _steps(ranks: Sequence[RankMeasurement]) -> dict[str, Any]:
    """Return the run's steps and windows; their times count from the first rank's first window."""
    first = ranks[0]
    zero_s = first.windows[0][0] if first.windows else 0.0
    same_steps = zip(*(rank.steps for rank in ranks), strict=True)
    return {
        "step_numbers": tuple(step.number for step in first.steps),
        "step_times_s": tuple(max(step.time_s for step in same) for same in same_steps),
        "step_begins_s": tuple(step.begin_s - zero_s for step in first.steps),
        "tokens": sum(step.tokens for rank in ranks for step in rank.steps),
        "window_s": max(window_length_s(rank.windows) for rank in ranks),
        "windows": tuple((begin_s - zero_s, end_s - zero_s) for begin_s, end_s in first.windows),
    }


def _device_conditions(ranks: Sequence[RankMeasurement]) -> tuple[DeviceConditions, ...]:
    """Return each accelerator's conditions; a rank that reads several is the first of the ranks that use these."""
    found: dict[str, DeviceConditions] = {}
    for rank in ranks:
        known = [device.conditions for device in rank.devices if device.conditions is not None]
        for place, conditions in enumerate(known):
            found.setdefault(conditions.device, replace(conditions, rank=rank.rank + place))
    return tuple(sorted(found.values(), key=attrgetter("rank")))


def _machine_conditions(ranks: Sequence[RankMeasurement]) -> tuple[MachineConditions, ...]:
    """Return each distinct set of a machine's conditions, with all ranks that have it."""
    found: dict[str, MachineConditions] = {}
    for rank in ranks:
        if rank.machine is not None:
            same = found.setdefault(repr(replace(rank.machine, ranks=[])), replace(rank.machine, ranks=[]))
            same.ranks.append(rank.rank)
    return tuple(found.values())


def _waits(rank: RankMeasurement) -> RankWaits | None:
    """Return a rank's mean waits over its measured steps; None unless every step has its waits."""
    waited = [step.waited_s for step in rank.steps if step.waited_s is not None]
    if not waited or len(waited) < len(rank.steps):
        return None
    across = [pipeline_s for _, pipeline_s in waited if pipeline_s is not None]
    return RankWaits(rank.rank, fmean([own_s for own_s, _ in waited]), fmean(across) if across else None)


def _joined(kinds: Sequence[str]) -> str:
    return " and ".join(sorted(set(kinds)))


_OverDevices = Mapping[str, tuple[str, Callable[[Sequence[Any]], Any]]]
"""The run's figure → the devices' field that it comes from, and the function that combines their values."""
_OF_DEVICES: _OverDevices = {
    "memory_kind": ("info.memory_kind", _joined),
    "memory_idle_gb": ("memory_idle_gb", fmean),
    "amu_gb": ("amu_gb", fmean),
    "amu_gb_max": ("amu_gb", max),
    "amu_fraction": ("amu_fraction", fmean),
    "amu_fraction_max": ("amu_fraction", max),
    "pcu": ("pcu", fmean),
    "peak_memory_device_bytes": ("peak_memory_device_bytes", max),
}
_OF_ALLOCATORS: _OverDevices = {
    "memory_allocated_mean_gb": ("amu_gb", fmean),
    "peak_memory_allocated_bytes": ("peak_memory_allocated_bytes", max),
    "peak_memory_reserved_bytes": ("peak_memory_reserved_bytes", max),
}
_OF_METERS: _OverDevices = {
    "energy_j": ("energy_j", math.fsum),
    "energy_source": ("energy_source", _joined),
    "aec_w": ("aec_w", fmean),
    "power_w_sum": ("aec_w", math.fsum),
    "power_idle_w": ("power_idle_w", math.fsum),
}


def _meter(scope: Scope | None, ranks: Sequence[RankMeasurement]) -> tuple[Scope | None, str]:
    """Return the energy's scope, the accelerators' or that of the host's meter, and the reason if there is none."""
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
    """Return one measurement for each uuid: the one with the fewest missing figures, then the most samples."""
    best: dict[tuple[str, bool], DeviceMeasurement] = {}
    for device in devices:
        # A meter from outside chooses its own uuid, which must not be that of a device.
        key = device.info.uuid, device.scope == "meter"
        other = best.setdefault(key, device)
        if sorted(device.info.processes) != sorted(other.info.processes):
            raise MetricsError(
                f"ranks measured different processes of {device.info.uuid} ({list(other.info.processes)} and "
                f"{list(device.info.processes)}): give each sensor of a host the ids of all the run's processes there"
            )
        if _completeness(device) > _completeness(other):
            best[key] = device
    return [best[key] for key in sorted(best)]


def _completeness(device: DeviceMeasurement) -> tuple[int, int]:
    return -len(device.unavailable), sum(device.samples.values())


def _readings(
    kind: str,
    devices: Sequence[DeviceMeasurement],
    meters: Sequence[DeviceMeasurement],
    worst: Callable[[list[Any]], Any],
) -> dict[str, Any]:
    """Return the worst device's number or interval of readings, by quantity; power's comes from the meters."""
    found = {}
    for quantity, read_by in (("memory", devices), ("utilization", devices), ("power", meters)):
        values = [getattr(device, kind)[quantity] for device in read_by if quantity in getattr(device, kind)]
        if values:
            found[quantity] = worst(values)
    return found


class _Figures:
    """The run's figures over the devices of one scope.

    A figure needs all devices: if one is missing or lacks it, the figure is None, and `unavailable` has the reason.
    """

    def __init__(
        self,
        table: _OverDevices,
        ranks: Sequence[RankMeasurement],
        devices: list[DeviceMeasurement],
        scope: Scope | None,
        no_sensor: str,
    ) -> None:
        self.devices = [device for device in devices if device.scope == scope]
        self.values: dict[str, Any] = {}
        self.unavailable: dict[str, str] = {}
        no_devices = self._why_incomplete(ranks, scope) or (None if self.devices else no_sensor)
        for name, (field, over_devices) in table.items():
            read = attrgetter(field)
            lacking = next((device for device in self.devices if read(device) is None), None)
            reason = no_devices or (None if lacking is None else self._why(lacking, field))
            self.values[name] = None if reason else over_devices([read(device) for device in self.devices])
            if reason:
                self.unavailable[name] = reason

    def _why(self, device: DeviceMeasurement, field: str) -> str:
        """Return why a device lacks a field, with the device's uuid if there are several devices."""
        read = "amu_gb" if field == "amu_fraction" else field
        unsaid = NOT_READ if field == "power_idle_w" else "a device's memory capacity is not known"
        reason = device.unavailable.get(read, unsaid)
        return reason if len(self.devices) == 1 else f"{device.info.uuid}: {reason}"

    @staticmethod
    def _why_incomplete(ranks: Sequence[RankMeasurement], scope: Scope | None) -> str | None:
        """Return the failure of a sensor that found no device: a sum would silently lack its devices."""
        for rank in ranks:
            if any(device.scope == scope for device in rank.devices):
                continue
            for sensor in rank.sensors:
                if sensor.scope == scope:
                    reason = sensor.failure or f"{sensor.name}: found no device"
                    return reason if len(ranks) == 1 else f"rank {rank.rank}: {reason}"
        return None


def longest(disturbances: Sequence[Disturbance], count: int) -> list[Disturbance]:
    """Return the `count` longest in order of time: a busy machine may have thousands, and a record must stay small."""
    kept = sorted(disturbances, key=lambda each: each.begin_s - each.end_s)[:count]
    return sorted(kept, key=attrgetter("begin_s"))
