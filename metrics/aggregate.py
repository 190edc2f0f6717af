"""Merges the ranks' measurements into the run's: steps by their slowest rank, each physical device once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from metrics.definitions import window_length_s
from metrics.errors import MetricsError
from metrics.measurement import DeviceMeasurement, RankMeasurement, RunMeasurement

# Where an accelerator was measured, figures are of it and never mixed with the host's.
_DEVICE_SCOPES = ("gpu", "npu", "host")
_ENERGY_SCOPES = {"gpu": "gpu", "npu": "npu", "host": "node"}


def merge(ranks: Sequence[RankMeasurement]) -> RunMeasurement:
    """All ranks together.

    Times are the largest over the ranks, step by step; tokens are summed; a physical device seen by several ranks
    counts once, by the reading that says most. A figure over devices needs all of them: where one lacks it, the
    figure is None with that device's reason.

    Raises:
        MetricsError: no rank at all, or ranks that measured different steps.
    """
    if not ranks:
        raise MetricsError("there is no rank's measurement to merge")
    numbers = [step.number for step in ranks[0].steps]
    for rank in ranks:
        if [step.number for step in rank.steps] != numbers:
            raise MetricsError(
                f"rank {rank.rank} measured {len(rank.steps)} steps and rank {ranks[0].rank} {len(numbers)}, or others "
                "by number: every rank must begin, end and pause at the same steps"
            )
    step_times_s = tuple(
        max(step.time_s for step in same) for same in zip(*(rank.steps for rank in ranks), strict=True)
    )
    everything = [device for rank in ranks for device in rank.devices]
    devices = _once_each(everything)
    scope = next((scope for scope in _DEVICE_SCOPES if any(device.scope == scope for device in devices)), None)
    failures = {name: why for rank in ranks for name, why in rank.sensor_failures.items()}
    window_s = max(window_length_s(rank.windows) for rank in ranks)
    return _Merger(ranks, devices, scope, failures, window_s).result(step_times_s)


def _once_each(devices: Iterable[DeviceMeasurement]) -> list[DeviceMeasurement]:
    """One reading for each uuid: the one with the fewest gaps, then the most samples."""
    best: dict[str, DeviceMeasurement] = {}
    for device in devices:
        other = best.get(device.uuid)
        if other is None or (-len(device.unavailable), device.samples) > (-len(other.unavailable), other.samples):
            best[device.uuid] = device
    return [best[uuid] for uuid in sorted(best)]


class _Merger:
    """Gathers figures over devices, and the reasons for those that are missing."""

    def __init__(
        self,
        ranks: Sequence[RankMeasurement],
        devices: list[DeviceMeasurement],
        scope: str | None,
        failures: dict[str, str],
        window_s: float,
    ) -> None:
        self.ranks = ranks
        self.scope = scope
        self.devices = [device for device in devices if device.scope == scope]
        self.allocators = [device for device in devices if device.scope == "allocator"]
        self.failures = failures
        self.window_s = window_s
        self.unavailable: dict[str, str] = {}

    def result(self, step_times_s: tuple[float, ...]) -> RunMeasurement:
        memory = self._over(self.devices, "memory_mean_bytes")
        fractions = self._fractions(memory)
        peaks = self._over(self.devices, "memory_peak_bytes")
        utilization = self._over(self.devices, "utilization")
        energy = self._over(self.devices, "energy_j")
        powers = [energy_j / self.window_s for energy_j in energy] if self.window_s > 0 else []
        for name in ("power_w", "power_w_sum"):
            if "energy_j" in self.unavailable:
                self.unavailable[name] = self.unavailable["energy_j"]
        allocated = self._over(self.allocators, "peak_allocated_bytes")
        reserved = self._over(self.allocators, "peak_reserved_bytes")
        allocated_mean = self._over(self.allocators, "memory_mean_bytes", "allocated_mean_bytes")
        sources = {device.energy_source for device in self.devices if device.energy_source is not None}
        idle = [device.memory_idle_bytes for device in self.devices if device.memory_idle_bytes is not None]
        intervals = [device.sample_interval_s for device in self.devices if device.sample_interval_s is not None]
        return RunMeasurement(
            ranks=len(self.ranks),
            window_s=self.window_s,
            step_times_s=step_times_s,
            tokens=sum(step.tokens for rank in self.ranks for step in rank.steps),
            scope=self.scope,
            device_names=tuple(device.name for device in self.devices),
            memory_mean_bytes=_mean(memory),
            memory_mean_bytes_max=max(memory, default=None),
            memory_fraction=_mean(fractions),
            memory_fraction_max=max(fractions, default=None),
            memory_idle_bytes=_mean(idle),
            memory_peak_bytes=max(peaks, default=None),
            utilization=_mean(utilization),
            power_w=_mean(powers),
            power_w_sum=math.fsum(powers) if powers else None,
            energy_j=math.fsum(energy) if energy else None,
            energy_scope=_ENERGY_SCOPES[self.scope] if energy and self.scope is not None else None,
            energy_source=" and ".join(sorted(sources)) if energy else None,
            peak_allocated_bytes=max((int(value) for value in allocated), default=None),
            peak_reserved_bytes=max((int(value) for value in reserved), default=None),
            allocated_mean_bytes=_mean(allocated_mean),
            sample_interval_s=max(intervals, default=None),
            unavailable=self.unavailable,
        )

    def _over(self, devices: list[DeviceMeasurement], name: str, as_name: str | None = None) -> list[float]:
        """That figure of each device, or nothing and a reason where any device lacks it."""
        if not devices:
            self.unavailable[as_name or name] = self._no_devices(name)
            return []
        values = []
        for device in devices:
            value = getattr(device, name)
            if value is None:
                reason = device.unavailable.get(name, "not measured")
                self.unavailable[as_name or name] = reason if len(devices) == 1 else f"{device.uuid}: {reason}"
                return []
            values.append(value)
        return values

    def _fractions(self, memory: list[float]) -> list[float]:
        capacities = [device.memory_capacity_bytes for device in self.devices]
        if not memory:
            self.unavailable["memory_fraction"] = self.unavailable["memory_mean_bytes"]
            return []
        if not all(capacities):
            self.unavailable["memory_fraction"] = "the device's memory capacity is not known"
            return []
        return [used / capacity for used, capacity in zip(memory, capacities, strict=True) if capacity]

    def _no_devices(self, name: str) -> str:
        if self.failures:
            return "; ".join(
                why if why.startswith(sensor) else f"{sensor}: {why}" for sensor, why in sorted(self.failures.items())
            )
        if name.startswith("peak_") and self.scope == "host":
            return "the host has no device allocator"
        return "no sensor for it was in use"


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
