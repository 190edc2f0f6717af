"""Records a sensor's readings as a trace, and plays a trace as a sensor on any other machine.

A trace is a JSONL file. A line with `device` as an object introduces a device; each other line is a reading of one
device at one `time_s` (any monotonic clock): fields of Sample or Counters, null or missing if not measured.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.metrics.formulas.definitions import longest_interval_s
from efficientbench.metrics.formulas.device_use import DeviceSettings
from efficientbench.metrics.sensors.base import (
    Counters,
    DeviceInfo,
    DeviceState,
    OtherUse,
    Peaks,
    Sample,
    Scope,
    Sensor,
)

_SAMPLED = ("memory_used_bytes", "utilization", "power_w")
_COUNTED = ("energy_j", "busy_s")


@dataclass
class Recorded:
    """One device's part of a trace."""

    info: DeviceInfo
    scope: Scope
    times_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in (*_SAMPLED, *_COUNTED)})
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in (*_SAMPLED, *_COUNTED)})

    def at(self, quantity: str, time_s: float) -> float | None:
        """Return the value at a time, interpolated between the readings around it.

        None before the first reading, after the last, and in a hole of a sampled quantity.
        """
        times_s, values = self.times_s[quantity], self.values[quantity]
        after = bisect_left(times_s, time_s)
        if after < len(times_s) and times_s[after] == time_s:
            return values[after]
        if after in (0, len(times_s)):
            return None
        gap_s = times_s[after] - times_s[after - 1]
        if gap_s > self._longest_s.get(quantity, gap_s):
            return None
        share = (time_s - times_s[after - 1]) / gap_s
        return values[after - 1] + share * (values[after] - values[after - 1])

    @cached_property
    def _longest_s(self) -> dict[str, float]:
        """Return for each sampled quantity the longest gap that is no hole, s."""
        return {name: longest_interval_s(self.times_s[name]) for name in _SAMPLED}

    def span_s(self) -> tuple[float, float]:
        """Return the first and the last time of any reading."""
        read = [times_s for times_s in self.times_s.values() if times_s]
        return min((t[0] for t in read), default=0.0), max((t[-1] for t in read), default=0.0)


def read_trace(path: Path) -> list[Recorded]:
    """Return the devices of a trace in its order.

    Raises:
        MetricsError: the trace cannot be read, or a line is no reading of a known device; the message has its number.
    """
    devices: dict[str, Recorded] = {}
    try:
        lines = read_whole(path).decode("utf-8").splitlines()
    except OSError as error:
        raise MetricsError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise MetricsError(f"{path}: is no text in UTF-8 ({error})") from None
    for number, line in enumerate(lines, start=1):
        try:
            _read_line(parse_json(line), devices)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise MetricsError(f"{path}, line {number}: not a line of a trace ({error!r})") from None
    if not devices:
        raise MetricsError(f"{path}: the trace names no device")
    return list(devices.values())


def _read_line(entry: dict[str, Any], devices: dict[str, Recorded]) -> None:
    if isinstance(entry["device"], dict):
        values = {**entry["device"], "processes": tuple(entry["device"].get("processes", ()))}
        info = DeviceInfo(**values)
        devices[info.uuid] = Recorded(info, entry["scope"])
        return
    recorded, time_s = devices[entry["device"]], float(entry["time_s"])
    for name in (*_SAMPLED, *_COUNTED):
        if entry.get(name) is not None:
            times_s = recorded.times_s[name]
            if times_s and time_s < times_s[-1]:
                raise ValueError(f"{name} at {time_s} s comes after {times_s[-1]} s")
            if not times_s or time_s > times_s[-1]:  # a counter may be read twice at one time, as at a window's edge
                times_s.append(time_s)
                recorded.values[name].append(float(entry[name]))


class ReplaySensor(Sensor):
    """Plays a trace from its beginning as time passes; a device without further readings drops out.

    Args:
        path: the trace's file.
        clock: the monitor's clock.
    """

    name = "replay"
    scope: Scope = "gpu"
    is_slow = False

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.unavailable: dict[str, str] = {}
        self._path = path
        self._clock = clock
        self._devices: list[Recorded] = []
        self._shift_s = 0.0
        self._end_s = 0.0

    def open(self) -> None:
        """Read the trace, whose first reading becomes the present.

        Raises:
            MetricsError: the trace cannot be read, or is damaged.
        """
        self._devices = read_trace(self._path)
        self.scope = self._devices[0].scope
        spans = [recorded.span_s() for recorded in self._devices]
        self._shift_s = min(begin_s for begin_s, _ in spans) - self._clock()
        self._end_s = max(end_s for _, end_s in spans)
        no = "the trace holds no such reading"
        for name in (*_SAMPLED, *_COUNTED):
            if not all(recorded.times_s[name] for recorded in self._devices):
                self.unavailable[name] = no
        self.unavailable |= dict.fromkeys(asdict(Peaks()), no)

    def devices(self) -> list[DeviceInfo]:
        return [recorded.info for recorded in self._devices]

    def sample(self, time_s: float) -> list[Sample]:
        at_s = time_s + self._shift_s
        if at_s > self._end_s:
            raise MetricsError(f"the trace {self._path.name} has ended")
        found = []
        for recorded in self._devices:
            values = [recorded.at(name, at_s) for name in _SAMPLED]
            if values.count(None) < len(values):
                found.append(Sample(time_s, recorded.info.uuid, *values))
        return found

    def counters(self) -> dict[str, Counters]:
        at_s = self._clock() + self._shift_s
        return {r.info.uuid: Counters(*(r.at(name, at_s) for name in _COUNTED)) for r in self._devices}


class RecordingSensor(Sensor):
    """Passes on another sensor's readings, and writes them as a trace.

    Args:
        sensor: the sensor to record.
        path: the trace's file; an existing file is overwritten.
        clock: the monitor's clock.
    """

    def __init__(self, sensor: Sensor, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = sensor.name
        self.is_slow = sensor.is_slow
        self.counters_are_watched = sensor.counters_are_watched
        self._sensor = sensor
        self._path = path
        self._clock = clock
        self._file: IO[str] | None = None

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        return self._sensor.scope

    @property
    def unavailable(self) -> dict[str, str]:  # type: ignore[override]
        return self._sensor.unavailable

    def open(self) -> None:
        self._sensor.open()
        self._file = self._path.open("w", encoding="utf-8")
        for info in self._sensor.devices():
            self._write({"device": asdict(info), "scope": self._sensor.scope})

    def devices(self) -> list[DeviceInfo]:
        return self._sensor.devices()

    def sample(self, time_s: float) -> list[Sample]:
        samples = self._sensor.sample(time_s)
        for sample in samples:
            self._write(sample._asdict())
        return samples

    def counters(self) -> dict[str, Counters]:
        counters = self._sensor.counters()
        now_s = self._clock()
        for uuid, counter in counters.items():
            self._write({"time_s": now_s, "device": uuid, **asdict(counter)})
        return counters

    def reset_peaks(self) -> None:
        self._sensor.reset_peaks()

    def peaks(self) -> dict[str, Peaks]:
        return self._sensor.peaks()

    def other_use(self) -> dict[str, OtherUse]:
        return self._sensor.other_use()

    def settings(self) -> dict[str, DeviceSettings]:
        return self._sensor.settings()

    def states(self) -> dict[str, DeviceState]:
        return self._sensor.states()

    def close(self) -> None:
        self._sensor.close()
        if self._file is not None:
            self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(entry) + "\n")
