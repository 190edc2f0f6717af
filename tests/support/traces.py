"""What a recorded trace says, computed from its samples alone, without a monitor's clock or thread."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from efficientbench.metrics.definitions import Windows
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement
from efficientbench.metrics.monitoring.series import DeviceSeries, Interval
from efficientbench.metrics.sensors.base import Counters, Peaks, Sample
from efficientbench.metrics.sensors.replay import Recorded, read_trace

_SAMPLED = ("memory_used_bytes", "utilization", "power_w")
_COUNTED = ("energy_j", "busy_s")


def measure_trace(path: Path, windows: Windows) -> list[DeviceMeasurement]:
    """What the devices of a trace did over windows on the trace's own clock, at the samples that it holds.

    Raises:
        MetricsError: the trace cannot be read.
    """
    measured = []
    for recorded in read_trace(path):
        series = DeviceSeries(recorded.info, recorded.scope)
        stamps = sorted({time_s for name in _SAMPLED for time_s in recorded.times_s[name]})
        for time_s in stamps:
            exact = {name: _exactly(recorded, name, time_s) for name in _SAMPLED}
            series.add(Sample(time_s, recorded.info.uuid, **exact))
        for begin_s, end_s in windows:
            begin, end = (Counters(*(recorded.at(name, at_s) for name in _COUNTED)) for at_s in (begin_s, end_s))
            series.add_interval(Interval(begin, end, end_s - begin_s, Peaks()))
        measured.append(series.measure(windows, {}, None))
    return measured


def _exactly(recorded: Recorded, name: str, time_s: float) -> float | None:
    place = bisect_right(recorded.times_s[name], time_s) - 1
    return recorded.values[name][place] if place >= 0 and recorded.times_s[name][place] == time_s else None
