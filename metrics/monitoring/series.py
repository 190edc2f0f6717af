"""Collects one device's samples and registers, and computes its figures over the measured window."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

from efficientbench.metrics.formulas import definitions
from efficientbench.metrics.formulas.definitions import (
    BYTES_PER_GB,
    Windows,
    gaps_s,
    longest_interval_s,
    window_length_s,
)
from efficientbench.metrics.formulas.device_use import Disturbance, Timeline
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement
from efficientbench.metrics.monitoring.timeline import make_timeline
from efficientbench.metrics.sensors.base import ALLOCATOR_PEAKS, Counters, DeviceInfo, OtherUse, Peaks, Sample, Scope

MINIMUM_COVERAGE = 0.95
"""Share of the window that samples must cover, holes excluded, for their mean to represent the window."""

LEAST_POWER_READINGS = 20
"""Power swings within a step, and is low at the window's edges: fewer readings do not represent the window."""

LARGEST_DISAGREEMENT = 1.2
"""Ratio of the energies by counter and by integrated power above which one of them is wrong."""

NO_STEP = "no step was measured"


@dataclass
class Signal:
    """One quantity of one device: time stamps and values, 16 bytes a sample."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, time_s: float, value: float | None) -> None:
        if value is not None:
            # Both arrays keep one length: what is no number raises before either grows.
            if not isfinite(value):
                raise ValueError("it is not finite")
            self.values.append(value)
            self.times_s.append(time_s)

    def count_in(self, windows: Windows) -> int:
        return sum(bisect_right(self.times_s, end) - bisect_left(self.times_s, begin) for begin, end in windows)

    def largest_in(self, windows: Windows) -> float | None:
        """Return the largest value inside the windows and of the samples that bracket them; None without samples."""
        inside: list[float] = []
        for begin, end in windows:
            first = max(bisect_right(self.times_s, begin) - 1, 0)
            inside += self.values[first : bisect_left(self.times_s, end) + 1]
        return max(inside, default=None)

    def too_sparse_in(self, windows: Windows) -> str | None:
        """Return why the samples cannot represent the windows, or None if they can.

        Holes, and time before the first or after the last sample, may make up a twentieth of the windows.
        """
        length_s, gaps = window_length_s(windows), gaps_s(self.times_s, windows)
        longest_s = longest_interval_s(self.times_s)
        seen_s = sum(gap for gap in gaps if gap <= longest_s)
        if seen_s >= MINIMUM_COVERAGE * length_s:
            return None
        hole = f", with a gap of {max(gaps):.3g} s" if gaps and max(gaps) > longest_s else ""
        return f"readings cover {seen_s:.3g} s of the {length_s:.3g} s measured{hole}"

    def stood_still(self) -> list[tuple[float, float]]:
        """Return the times (begin_s, end_s) in which a growing counter stood still, and lost what it had to count.

        They are holes between two changes of its readings, over which it grew at less than half of its rate elsewhere.
        A counter that grew as fast there has caught up, or was not read.
        """
        times_s, values = self.times_s, self.values
        changes = [place for place in range(len(values)) if place == 0 or values[place] != values[place - 1]]
        spans = list(pairwise([*changes, len(values) - 1])) if changes else []
        longest_s = longest_interval_s([times_s[place] for place in changes])
        holes = [(a, b) for a, b in spans if times_s[b] - times_s[a] > longest_s]
        grown = sum(values[b] - values[a] for a, b in spans if (a, b) not in holes)
        grown_s = sum(times_s[b] - times_s[a] for a, b in spans if (a, b) not in holes)
        return [
            (times_s[a], times_s[b])
            for a, b in holes
            if (values[b] - values[a]) * grown_s < grown / 2 * (times_s[b] - times_s[a])
        ]


@dataclass(frozen=True)
class Interval:
    """A device's own registers at both ends of one measured interval."""

    begin: Counters
    end: Counters
    apart_s: float
    """Time between both readings, s: more than the interval if a reading had to wait for a sample in progress."""
    peaks: Peaks


class DeviceSeries:
    """Collects one device's samples, and its registers for each measured interval."""

    def __init__(self, info: DeviceInfo, scope: Scope) -> None:
        self._info = info
        self._scope: Scope = scope
        self._idle_gb: float | None = None
        self._memory = Signal()
        self._utilization = Signal()
        self._power = Signal()
        self.intervals: list[Interval] = []
        """The registers of each measured interval; the sampler appends them."""
        self._watched = {"energy_j": Signal(), "busy_s": Signal()}
        self._other_use: list[tuple[float, float, OtherUse]] = []
        self._origin_s: float | None = None

    def add(self, sample: Sample) -> None:
        if self._origin_s is None:
            self._origin_s = sample.time_s
            if sample.memory_used_bytes is not None:
                self._idle_gb = sample.memory_used_bytes / BYTES_PER_GB
        self._memory.add(sample.time_s, sample.memory_used_bytes)
        self._utilization.add(sample.time_s, sample.utilization)
        self._power.add(sample.time_s, sample.power_w)

    def watch(self, time_s: float, counters: Counters) -> None:
        """Record counters read at any time, to detect a register that wraps around inside a measured interval."""
        for name, signal in self._watched.items():
            signal.add(time_s, getattr(counters, name))

    def add_other_use(self, begin_s: float, end_s: float, use: OtherUse) -> None:
        """Record that others used the device from `begin_s` to `end_s`; the same use without a gap extends an entry."""
        if self._other_use:
            before_s, until_s, last = self._other_use[-1]
            if until_s == begin_s and last.description == use.description:
                share = None if last.share is None or use.share is None else max(last.share, use.share)
                self._other_use[-1] = (before_s, end_s, OtherUse(last.description, share))
                return
        self._other_use.append((begin_s, end_s, use))

    def measure(self, windows: Windows, unavailable: dict[str, str], failure: str | None) -> DeviceMeasurement:
        """Return the device's figures over the windows.

        Args:
            windows: the measured intervals, one for each entry of `intervals`.
            unavailable: the sensor's own reasons, by field of Sample, Counters or Peaks.
            failure: why the sensor stopped early, if it did.
        """
        reasons: dict[str, str] = {}
        window_s = window_length_s(windows)

        def reason_for(quantity: str, why: str) -> str:
            """Return the nearest reason: the sensor's own, its failure, or the samples'."""
            return unavailable.get(quantity) or failure or why

        amu_gb, why = self._averaged(self._memory, definitions.average_memory_utilization, windows)
        if amu_gb is None:
            reasons["amu_gb"] = reason_for("memory_used_bytes", why)
        if self._idle_gb is None:
            reasons["memory_idle_gb"] = reason_for("memory_used_bytes", "the first sample lacks it")
        pcu, why = self._busy(windows)
        if pcu is None:
            reasons["pcu"] = reason_for("utilization", why)
        energy_j, energy_source, why = self._energy(windows)
        if energy_j is None:
            why = reason_for("power_w", why)
            fault = self._fault("energy_j", windows)
            if fault is not None:
                why = f"the energy counter {fault}, and power cannot replace it: {why}"
            reasons |= dict.fromkeys(("energy_j", "energy_source", "aec_w"), why)
        peaks = self._peaks(windows, amu_gb is not None)
        for figure, peak in peaks.items():
            if peak is None:
                # Without a register, the peak comes from the samples, and is missing for the same reason as the mean.
                of_samples = reasons.get("amu_gb") if figure == "peak_memory_device_bytes" else None
                reasons[figure] = of_samples or reason_for(figure, NO_STEP)
        signals = {"memory": self._memory, "utilization": self._utilization, "power": self._power}
        samples = {name: signal.count_in(windows) for name, signal in signals.items() if signal.times_s}
        return DeviceMeasurement(
            info=self._info,
            scope=self._scope,
            memory_idle_gb=self._idle_gb,
            amu_gb=amu_gb,
            pcu=pcu,
            aec_w=None if energy_j is None else definitions.average_energy_consumption(energy_j, window_s),
            energy_j=energy_j,
            energy_source=None if energy_j is None else energy_source,
            peak_memory_device_bytes=peaks["peak_memory_device_bytes"],
            peak_memory_allocated_bytes=peaks["peak_memory_allocated_bytes"],
            peak_memory_reserved_bytes=peaks["peak_memory_reserved_bytes"],
            samples=samples,
            sample_intervals_s={name: window_s / count for name, count in samples.items() if count},
            unavailable=reasons,
            window_energy_j=self._energy_by_window(windows, energy_j, energy_source),
            energy_doubt=self._energy_doubt(windows, energy_j) if energy_source == "counter" else None,
            timeline=self._timeline(windows),
            disturbances=self._disturbances(windows),
        )

    def _energy_by_window(self, windows: Windows, energy_j: float | None, source: str) -> tuple[float, ...]:
        """Return the energy of each window, J, which sum to `energy_j`; empty without energy."""
        if not energy_j:
            return ()
        parts = self._growths("energy_j", windows) if source == "counter" else None
        if parts is None:
            # A window too short for any sample to cover gets the mean power.
            mean_w = energy_j / window_length_s(windows)
            means = [definitions.time_average(self._power.times_s, self._power.values, [window]) for window in windows]
            parts = [
                (mean_w if power_w is None else power_w) * (end_s - begin_s)
                for power_w, (begin_s, end_s) in zip(means, windows, strict=True)
            ]
        # Scaled, since integrals of parts miss the pieces between the samples at their edges.
        return tuple(part * energy_j / sum(parts) for part in parts)

    def _timeline(self, windows: Windows) -> Timeline | None:
        if self._origin_s is None:
            return None
        memory, utilization, power = (
            (signal.times_s, signal.values) for signal in (self._memory, self._utilization, self._power)
        )
        info, zero_s = self._info, self._zero_s(windows)
        return make_timeline(info.uuid, info.name, self._scope, memory, utilization, power, zero_s)

    def _disturbances(self, windows: Windows) -> tuple[Disturbance, ...]:
        zero_s = self._zero_s(windows)
        return tuple(
            Disturbance(self._info.uuid, begin_s - zero_s, end_s - zero_s, use.description, use.share)
            for begin_s, end_s, use in self._other_use
        )

    def _zero_s(self, windows: Windows) -> float:
        return windows[0][0] if windows else self._origin_s or 0.0

    def _averaged(
        self, signal: Signal, formula: Callable[..., float | None], windows: Windows
    ) -> tuple[float | None, str]:
        """Return a mean of samples, or None and the reason."""
        why = signal.too_sparse_in(windows) if window_length_s(windows) > 0 else NO_STEP
        return (formula(signal.times_s, signal.values, windows), "") if why is None else (None, why)

    def _busy(self, windows: Windows) -> tuple[float | None, str]:
        """Return PCU from the device's register of busy time, else from samples; or None and the reason."""
        busy_s, window_s = self._growth("busy_s", windows), window_length_s(windows)
        if busy_s is not None and window_s > 0:
            return busy_s / window_s, ""
        return self._averaged(self._utilization, definitions.peak_compute_utilization, windows)

    def _energy(self, windows: Windows) -> tuple[float | None, str, str]:
        """Return (energy in J, its source, the reason if None): the counter's growth, else integrated power."""
        grown_j, window_s = self._growth("energy_j", windows), window_length_s(windows)
        if grown_j:
            return grown_j, "counter", ""
        power_w, why = self._mean_power(windows)
        if power_w:
            return power_w * window_s, "integrated power", ""
        # No device uses 0 J: a meter that shows 0 J does not measure.
        still = power_w == 0 or (grown_j == 0 and window_s > 0)
        return None, "", "the meter stood still over the whole window" if still else why

    def _mean_power(self, windows: Windows) -> tuple[float | None, str]:
        """Return the mean of the polled power, W, or None and the reason."""
        power_w, why = self._averaged(self._power, definitions.time_average, windows)
        count = self._power.count_in(windows)
        if power_w and count < LEAST_POWER_READINGS:
            return None, f"power was read {count} times in the windows, and its mean needs {LEAST_POWER_READINGS}"
        return power_w, why

    def _energy_doubt(self, windows: Windows, counted_j: float | None) -> str | None:
        """Return how far the counter is from the polled power if one of them must be wrong, else None."""
        power_w, _ = self._mean_power(windows)
        if not power_w or not counted_j:
            return None
        integrated_j = power_w * window_length_s(windows)
        if max(counted_j, integrated_j) <= LARGEST_DISAGREEMENT * min(counted_j, integrated_j):
            return None
        return (
            f"{self._info.name} ({self._info.uuid}) counted {counted_j:.4g} J, and its polled power gives "
            f"{integrated_j:.4g} J: one of them is wrong"
        )

    def _growth(self, counter: str, windows: Windows) -> float | None:
        """Return a counter's growth inside the windows; None if it was not read at an edge, or cannot be believed."""
        grown = self._growths(counter, windows)
        return sum(grown) if grown else None

    def _growths(self, counter: str, windows: Windows) -> list[float] | None:
        """Return a counter's growth inside each window, or None as `_growth` does."""
        if self._fault(counter, windows) is not None:
            return None
        length_s = window_length_s(windows)
        grown, bridged = [], length_s / (length_s - self._lost_s(counter, windows)) if length_s else 1.0
        for (begin_s, end_s), interval in zip(windows, self.intervals, strict=True):
            first, last = getattr(interval.begin, counter), getattr(interval.end, counter)
            if first is None or last is None or interval.apart_s <= 0:
                return None
            # The readings lie a little outside of the window: scale their growth to its length.
            grown.append((last - first) * (end_s - begin_s) / interval.apart_s * bridged)
        return grown

    def _fault(self, counter: str, windows: Windows) -> str | None:
        """Return in words why a counter cannot be believed; None where nothing speaks against it."""
        if self._ran_backwards(counter, windows):
            return "wrapped around or restarted"
        lost_s, length_s = self._lost_s(counter, windows), window_length_s(windows)
        if lost_s > (1 - MINIMUM_COVERAGE) * length_s:
            return f"stood still for {lost_s:.3g} s of the {length_s:.3g} s measured"
        return None

    def _lost_s(self, counter: str, windows: Windows) -> float:
        """Return the time inside the windows in which the energy counter stood still; an idle device is not busy."""
        if counter != "energy_j":
            return 0.0
        still = self._watched[counter].stood_still()
        return sum(max(min(b, end) - max(a, begin), 0.0) for a, b in still for begin, end in windows)

    def _ran_backwards(self, counter: str, windows: Windows) -> bool:
        """Return whether a reading inside a window, or at its edges, is below the one before it."""
        watched = self._watched[counter]
        for (begin_s, end_s), interval in zip(windows, self.intervals, strict=True):
            between = watched.values[bisect_left(watched.times_s, begin_s) : bisect_right(watched.times_s, end_s)]
            readings = [getattr(interval.begin, counter), *between, getattr(interval.end, counter)]
            known = [value for value in readings if value is not None]
            if any(after < before for before, after in pairwise(known)):
                return True
        return False

    def _peaks(self, windows: Windows, has_memory: bool) -> dict[str, int | None]:
        """Return the largest memory in the windows: that of the device's own peaks and of the samples."""
        # On a host the peak is less what other processes share when it is read, which may be more than at a sample.
        seen = (self._peak("peak_memory_device_bytes"), self._memory.largest_in(windows))
        used = max((peak for peak in seen if peak), default=None)
        return {
            "peak_memory_device_bytes": int(used) if used is not None and has_memory else None,
            **{name: self._peak(name) for name in ALLOCATOR_PEAKS},
        }

    def _peak(self, name: str) -> int | None:
        """Return the largest peak over the intervals; None if one was not read."""
        peaks = [getattr(interval.peaks, name) for interval in self.intervals]
        return None if not peaks or None in peaks else max(peaks)
