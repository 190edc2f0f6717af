"""A device's course in a bounded number of points, from the samples to the record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.metrics_parts import GB, HandClock, TraceSensor, measure_steps, monitor_of, run_steps

from efficientbench.metrics import merge
from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.monitoring.aggregate import longest
from efficientbench.metrics.monitoring.timeline import MAXIMUM_POINTS, make_timeline
from efficientbench.metrics.sensors.base import QUANTITIES, OtherUse

NOTHING: tuple[list[float], list[float]] = ([], [])


def test_a_long_run_becomes_five_hundred_points_with_mean_and_maximum() -> None:
    times_s = [i / 10 for i in range(100_000)]
    power_w = [300.0 if i % 1000 == 7 else 100.0 for i in range(100_000)]
    line = make_timeline("GPU-0", "Trace 9000", "gpu", NOTHING, NOTHING, (times_s, power_w), origin_s=1000.0)
    assert len(line.time_s) == len(line.power_w_mean) == len(line.memory_used_gb_max) == MAXIMUM_POINTS
    assert (line.time_s[0], line.time_s[-1]) == (pytest.approx(-990, abs=0.2), pytest.approx(8990, abs=0.2))
    # 200 samples a bucket; every fifth bucket holds the one of 300 W.
    assert line.power_w_mean[:6] == [101, 100, 100, 100, 100, 101]
    assert line.power_w_max[:6] == [300, 100, 100, 100, 100, 300]
    assert set(line.memory_used_gb_mean) == {None}


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e3)), min_size=1, max_size=300), st.booleans())
def test_no_sample_is_lost_or_counted_twice(samples: list[tuple[float, float]], with_memory: bool) -> None:
    times_s = sorted(time_s for time_s, _ in samples)
    values = [value for _, value in samples]
    memory = ([times_s[0]], [5.0 * GB]) if with_memory else NOTHING
    line = make_timeline("GPU-0", "x", "gpu", memory, (times_s, values), NOTHING, origin_s=0.0)
    assert 0 < len(line.time_s) <= min(MAXIMUM_POINTS, len(samples))
    assert line.time_s == sorted(line.time_s)
    assert max(value for value in line.utilization_max if value is not None) == pytest.approx(max(values), abs=1e-4)
    means = [value for value in line.utilization_mean if value is not None]
    assert min(values) - 1e-4 <= min(means) <= max(means) <= max(values) + 1e-4
    assert line.memory_used_gb_mean[0] == (5.0 if with_memory else None)


class Visited(TraceSensor):
    """Another process is on the device from second 20 to 40."""

    def other_use(self) -> dict[str, OtherUse]:
        now_s = self.clock()
        return {"GPU-0": OtherUse("process 7 (other)", now_s / 100)} if 20 <= now_s < 40 else {}


def test_times_of_traces_windows_and_disturbances_start_at_the_first_window() -> None:
    clock = HandClock(0)
    sensor = Visited(clock, memory=lambda t: GB * (1 + t), power=lambda t: t)
    with monitor_of(clock, sensor, warmup_steps=1) as monitor:
        for time_s in (10.0, 5.0, 15.0):
            run_steps(monitor, clock, time_s)
            with monitor.paused():
                clock.pass_time(1)
    run = merge([monitor.finish()])
    # Samples fall at 0 (start), 11 and 16, 17 and 32 (the edges of both windows).
    assert (run.windows, run.step_begins_s) == (((0, 5), (6, 21)), (0, 6))
    (line,) = run.timelines
    assert line.time_s == pytest.approx([-11, 0, 5, 6, 21], abs=0.04)
    assert (line.memory_used_gb_mean, line.power_w_max) == ([1, 12, 17, 18, 33], [0, 11, 16, 17, 32])
    # The looks at 11 and 16 saw nobody, that at 17 comes too soon after.
    assert run.disturbances == (Disturbance("GPU-0", 5, 21, "process 7 (other)", 0.32),)


def test_a_sensor_says_what_it_measures_and_at_which_interval() -> None:
    clock = HandClock(0)
    sensor = TraceSensor(clock, power=lambda t: 5, unavailable={"utilization": "it has no meter"})
    (state,) = measure_steps(clock, sensor, times_s=[4]).sensors
    assert set(QUANTITIES) - set(state.measures) == {"utilization"}
    assert state.unavailable == {"utilization": "it has no meter"}
    assert state.sample_interval_s == 2  # at the start, at 0 and at 4: two intervals


def test_only_the_longest_of_many_disturbances_are_recorded_in_order() -> None:
    many = [Disturbance("A", 10.0 * i, 10.0 * i + 1 + i % 4, "others") for i in range(1000)]
    kept = longest(many, 500)
    assert [each.begin_s for each in kept] == sorted(each.begin_s for each in kept)
    assert (len(kept), {each.end_s - each.begin_s for each in kept}) == (500, {3, 4})
    assert longest(many[:3], 500) == many[:3]
