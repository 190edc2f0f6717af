"""One device's samples as they come in, and what they amount to over the measured window."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from metrics.definitions import Windows, integrate, window_length_s
from metrics.measurement import DeviceMeasurement
from metrics.sensors.base import Counters, DeviceInfo, Sample

MINIMUM_COVERAGE = 0.95
"""Share of the window that samples must cover before their mean stands for the whole of it."""


@dataclass
class Signal:
    """One quantity of one device: time stamps and values, 16 bytes a sample."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, time_s: float, value: float | None) -> None:
        if value is not None:
            self.times_s.append(time_s)
            self.values.append(value)

    def count_in(self, windows: Windows) -> int:
        return sum(bisect_right(self.times_s, end) - bisect_left(self.times_s, begin) for begin, end in windows)

    def largest_in(self, windows: Windows) -> float | None:
        """The largest value inside the windows or at the samples that bracket them."""
        inside: list[float] = []
        for begin, end in windows:
            first = max(bisect_right(self.times_s, begin) - 1, 0)
            inside += self.values[first : bisect_left(self.times_s, end) + 1]
        return max(inside, default=None)

    def mean_in(self, windows: Windows) -> tuple[float | None, str]:
        """The time average over the windows, or None and why."""
        length_s = window_length_s(windows)
        if length_s <= 0:
            return None, "no step was measured"
        integral, covered_s = integrate(self.times_s, self.values, windows)
        if covered_s < MINIMUM_COVERAGE * length_s:
            return None, f"readings cover {covered_s:.3g} s of the {length_s:.3g} s measured"
        return integral / covered_s, ""


class DeviceSeries:
    """Gathers one device's samples and its counters at the edges of each measured interval."""

    def __init__(self, info: DeviceInfo, scope: str, sensor: str) -> None:
        self.info = info
        self.scope = scope
        self.sensor = sensor
        self.latest: Sample | None = None
        self._idle_bytes: float | None = None
        self._signals = {"memory": Signal(), "utilization": Signal(), "power": Signal()}
        self._edges: list[tuple[Counters, Counters, float]] = []

    def add(self, sample: Sample) -> None:
        if self.latest is None:
            self._idle_bytes = sample.memory_used_bytes
        self.latest = sample
        self._signals["memory"].add(sample.time_s, sample.memory_used_bytes)
        self._signals["utilization"].add(sample.time_s, sample.utilization)
        self._signals["power"].add(sample.time_s, sample.power_w)

    def add_edges(self, begin: Counters | None, end: Counters | None, apart_s: float) -> None:
        """Counters read `apart_s` from each other at both ends of a measured interval; None: it did not answer."""
        self._edges.append((begin or Counters(), end or Counters(), apart_s))

    def measure(self, windows: Windows, unavailable: dict[str, str], failure: str | None) -> DeviceMeasurement:
        """What this device did over the windows.

        Args:
            windows: the measured intervals; one pair of counters was added for each.
            unavailable: the sensor's own reasons, by field of Sample or Counters.
            failure: why the sensor stopped early, if it did.
        """
        reasons: dict[str, str] = {}

        def because(quantity: str, otherwise: str) -> str:
            return unavailable.get(quantity) or failure or otherwise

        memory_mean, why = self._signals["memory"].mean_in(windows)
        if memory_mean is None:
            reasons["memory_mean_bytes"] = reasons["memory_peak_bytes"] = because("memory_used_bytes", why)
        utilization, why = self._utilization(windows)
        if utilization is None:
            reasons["utilization"] = because("utilization", why)
        energy_j, energy_source, why = self._energy(windows)
        if energy_j is None:
            reasons["energy_j"] = because("power_w", why)
        allocated, reserved = self._peak("peak_allocated_bytes"), self._peak("peak_reserved_bytes")
        for name, value in (("peak_allocated_bytes", allocated), ("peak_reserved_bytes", reserved)):
            if value is None:
                reasons[name] = because(name, "no step was measured")
        samples = max(signal.count_in(windows) for signal in self._signals.values())
        return DeviceMeasurement(
            uuid=self.info.uuid,
            name=self.info.name,
            scope=self.scope,
            sensor=self.sensor,
            memory_capacity_bytes=self.info.memory_capacity_bytes,
            memory_idle_bytes=self._idle_bytes,
            memory_mean_bytes=memory_mean,
            memory_peak_bytes=None if memory_mean is None else self._signals["memory"].largest_in(windows),
            utilization=utilization,
            energy_j=energy_j,
            energy_source=energy_source,
            peak_allocated_bytes=allocated,
            peak_reserved_bytes=reserved,
            samples=samples,
            sample_interval_s=window_length_s(windows) / samples if samples else None,
            unavailable=reasons,
        )

    def _utilization(self, windows: Windows) -> tuple[float | None, str]:
        busy_s = self._growth("busy_s", windows)
        if busy_s is not None and window_length_s(windows) > 0:
            return busy_s / window_length_s(windows), ""
        return self._signals["utilization"].mean_in(windows)

    def _energy(self, windows: Windows) -> tuple[float | None, str | None, str]:
        counted_j = self._growth("energy_j", windows)
        if counted_j is not None:
            return counted_j, "counter", ""
        mean_power_w, why = self._signals["power"].mean_in(windows)
        if mean_power_w is None:
            return None, None, why
        return mean_power_w * window_length_s(windows), "integrated power", ""

    def _growth(self, counter: str, windows: Windows) -> float | None:
        """How much a counter grew inside the windows; None where it was unread, or ran backwards, at any edge.

        A reading may wait for a sample under way, so the growth between readings is scaled to the window's length.
        """
        grown = 0.0
        for (begin_s, end_s), (begin, end, apart_s) in zip(windows, self._edges, strict=True):
            first, last = getattr(begin, counter), getattr(end, counter)
            if first is None or last is None or last < first or apart_s <= 0:
                return None
            grown += (last - first) * (end_s - begin_s) / apart_s
        return grown if self._edges else None

    def _peak(self, counter: str) -> int | None:
        """The largest peak read at the end of an interval; None where one was not read."""
        peaks = [getattr(end, counter) for _, end, _ in self._edges]
        return None if not peaks or None in peaks else max(peaks)
