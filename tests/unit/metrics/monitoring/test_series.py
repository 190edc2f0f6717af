"""One device's trace, without a monitor."""

from __future__ import annotations

import pytest
from support.metrics_parts import GB

from efficientbench.metrics.monitoring.series import DeviceSeries, Interval
from efficientbench.metrics.sensors.base import Counters, DeviceInfo, Peaks, Sample, Scope

INFO = DeviceInfo("GPU-0", "Trace 9000", 80 * GB, "driver")
SCOPE: Scope = "gpu"


def test_a_device_lost_during_the_window_has_no_mean() -> None:
    series = DeviceSeries(INFO, SCOPE)
    for second in range(7):
        series.add(Sample(float(second), "GPU-0", memory_used_bytes=10.0 * GB))
    series.intervals.append(Interval(Counters(), Counters(), 10.0, Peaks()))
    device = series.measure([(0.0, 10.0)], {}, None)
    assert (device.amu_gb, device.unavailable["amu_gb"]) == (None, "readings cover 6 s of the 10 s measured")
    assert series.measure([(0.0, 6.1)], {}, None).amu_gb == pytest.approx(10)


def test_rare_readings_leave_no_gap_in_a_short_window() -> None:
    series = DeviceSeries(INFO, SCOPE)
    for reading in range(40):
        series.add(Sample(reading / 2, "GPU-0", memory_used_bytes=10.0 * GB))
    series.intervals.append(Interval(Counters(), Counters(), 0.46, Peaks()))
    assert series.measure([(5.49, 5.95)], {}, None).amu_gb == pytest.approx(10)


def test_growth_between_late_readings_is_scaled_to_the_window() -> None:
    series = DeviceSeries(INFO, SCOPE)
    series.intervals.append(
        Interval(Counters(energy_j=0.0, busy_s=0.0), Counters(energy_j=1100, busy_s=5.5), 11.0, Peaks())
    )
    device = series.measure([(0.0, 10.0)], {}, None)
    assert (device.energy_j, device.pcu) == pytest.approx((1000, 0.5))


def test_a_peak_from_the_devices_counter_beats_sampled_peaks() -> None:
    series = DeviceSeries(INFO, SCOPE)
    for time_s in (0.0, 5.0, 10.0):
        series.add(Sample(time_s, "GPU-0", memory_used_bytes=10.0 * GB))
    windows = [(0.0, 4.0), (6.0, 10.0)]
    for used in (12 * GB, 11 * GB):
        series.intervals.append(Interval(Counters(), Counters(), 4.0, Peaks(peak_memory_device_bytes=used)))
    assert series.measure(windows, {}, None).peak_memory_device_bytes == 12 * GB


def test_a_peak_is_no_less_than_a_sample() -> None:
    """On a host, memory that more processes share at the end lowers the peak that is read there."""
    series = DeviceSeries(INFO, SCOPE)
    for time_s, used in ((0.0, 10.0), (5.0, 11.0), (10.0, 10.0)):
        series.add(Sample(time_s, "GPU-0", memory_used_bytes=used * GB))
    series.intervals.append(Interval(Counters(), Counters(), 10.0, Peaks(peak_memory_device_bytes=10 * GB)))
    assert series.measure([(0.0, 10.0)], {}, None).peak_memory_device_bytes == 11 * GB
