"""Reduces one device's whole run to a few hundred points for plots, however long the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from efficientbench.metrics.formulas.definitions import BYTES_PER_GB
from efficientbench.metrics.formulas.device_use import Timeline

MAXIMUM_POINTS = 500

Trace = tuple[Sequence[float], Sequence[float]]
"""Time stamps in seconds, increasing, and as many values."""


def make_timeline(
    device: str, device_name: str, scope: str, memory_bytes: Trace, utilization: Trace, power_w: Trace, origin_s: float
) -> Timeline:
    """Reduce samples to at most `MAXIMUM_POINTS` buckets.

    Args:
        device: the device's uuid.
        device_name: the device's name.
        scope: the scope of the device's sensor.
        memory_bytes: samples of memory used; may be empty, as may the other samples.
        utilization: samples of the busy fraction.
        power_w: samples of the power.
        origin_s: the time that counts as zero, on the samples' clock.
    """
    traces = (memory_bytes, utilization, power_w)
    sampled = [times_s for times_s, _ in traces if times_s]
    begin_s = min((times_s[0] for times_s in sampled), default=0.0)
    end_s = max((times_s[-1] for times_s in sampled), default=0.0)
    # A hair wider than a 500th, so that the last sample lies in the last bucket and not on its far edge.
    bucket_s = math.nextafter((end_s - begin_s) / MAXIMUM_POINTS, math.inf)
    filled = [_buckets(trace, begin_s, bucket_s) for trace in traces]
    numbers = sorted(set().union(*filled))

    def column(which: int, kind: int, scale: float, digits: int) -> list[float | None]:
        found = filled[which]
        return [round(found[n][kind] / scale, digits) if n in found else None for n in numbers]

    return Timeline(
        device=device,
        device_name=device_name,
        scope=scope,
        bucket_s=bucket_s,
        time_s=[round(begin_s + (n + 0.5) * bucket_s - origin_s, 3) for n in numbers],
        memory_used_gb_mean=column(0, _MEAN, BYTES_PER_GB, 4),
        memory_used_gb_max=column(0, _MAX, BYTES_PER_GB, 4),
        utilization_mean=column(1, _MEAN, 1, 4),
        utilization_max=column(1, _MAX, 1, 4),
        power_w_mean=column(2, _MEAN, 1, 2),
        power_w_max=column(2, _MAX, 1, 2),
    )


_MEAN, _MAX = 0, 1


def _buckets(trace: Trace, begin_s: float, bucket_s: float) -> dict[int, tuple[float, float]]:
    """Return number of a bucket → (mean, largest) of the bucket's values."""
    gathered: dict[int, tuple[float, int, float]] = {}
    for time_s, value in zip(*trace, strict=True):
        number = min(int((time_s - begin_s) / bucket_s), MAXIMUM_POINTS - 1)
        total, count, largest = gathered.get(number, (0.0, 0, -math.inf))
        gathered[number] = total + value, count + 1, max(largest, value)
    return {number: (total / count, largest) for number, (total, count, largest) in gathered.items()}
