"""The monitor's window, its edges, warm-up, pauses and sensors that fail, on a clock moved by hand."""

from __future__ import annotations

import threading

import pytest
from support.metrics_parts import GB, HandClock, TraceSensor, measure_steps, monitor_of, run_steps

from efficientbench.metrics import EfficiencyMonitor, MetricsError, merge
from efficientbench.metrics.monitoring.sampling_threads import SamplingThread
from efficientbench.metrics.sensors.base import Counters


def test_the_window_begins_after_warm_up() -> None:
    clock = HandClock()
    with monitor_of(clock, warmup_steps=2) as monitor:
        run_steps(monitor, clock, 50, 40, 1, 2, 3)
    measured = monitor.finish()
    assert [(step.number, step.time_s) for step in measured.steps] == [(3, 1), (4, 2), (5, 3)]
    assert (measured.windows, merge([measured]).tokens) == (((190, 196),), 300)


def test_pauses_are_cut_out_and_the_window_waits_for_the_next_step() -> None:
    clock = HandClock(0)
    with monitor_of(clock) as monitor:
        run_steps(monitor, clock, 1, 1)
        with monitor.paused():
            clock.pass_time(30)
        clock.pass_time(500)  # not a step either, though the pause is over
        run_steps(monitor, clock, 2)
    assert monitor.finish().windows == ((0, 2), (532, 534))
    assert merge([monitor.finish()]).window_s == 4


def test_a_pause_in_the_warm_up_opens_no_window() -> None:
    clock = HandClock(0)
    with monitor_of(clock, warmup_steps=2) as monitor:
        run_steps(monitor, clock, 1)
        with monitor.paused():
            clock.pass_time(10)
        run_steps(monitor, clock, 1, 5)
    assert monitor.finish().windows == ((12, 17),)
    assert len(monitor.finish().steps) == 1


def test_power_and_memory_during_pauses_and_warm_up_do_not_count() -> None:
    clock = HandClock(0)

    def in_window(t: float) -> bool:
        return 10 <= t <= 20 or 60 <= t <= 70

    sensor = TraceSensor(
        clock,
        memory=lambda t: 30 * GB if in_window(t) else 70 * GB,
        utilization=lambda t: 0.75 if in_window(t) else 0.0,
        power=lambda t: 400 if in_window(t) else 50,
    )
    with monitor_of(clock, sensor, warmup_steps=1) as monitor:
        run_steps(monitor, clock, 10, 10, readings=16)
        with monitor.paused():
            clock.pass_time(40)
        run_steps(monitor, clock, 10, readings=16)
    run = merge([monitor.finish()])
    assert (run.window_s, run.aec_w, run.energy_j) == pytest.approx((20, 400, 8000))
    assert run.energy_source == "integrated power"
    assert (run.memory_idle_gb, run.amu_gb, run.pcu) == pytest.approx((70, 30, 0.75))
    assert run.peak_memory_device_bytes == 30 * GB


def test_an_energy_counter_is_read_at_the_windows_edges_and_preferred_to_power() -> None:
    clock = HandClock(0)
    # 300 W while training, 100 W otherwise; the polled power is wrong on purpose.
    joules = {0.0: 0.0, 5.0: 500.0, 15.0: 3500.0, 45.0: 6500.0, 55.0: 9500.0}
    sensor = TraceSensor(clock, power=lambda t: 7.0, energy=lambda t: joules[t])
    with monitor_of(clock, sensor, warmup_steps=1) as monitor:
        run_steps(monitor, clock, 5, 10)
        with monitor.paused():
            clock.pass_time(30)
        run_steps(monitor, clock, 10)
    run = merge([monitor.finish()])
    assert (run.energy_j, run.aec_w, run.energy_source) == (pytest.approx(6000), pytest.approx(300), "counter")


def test_power_replaces_an_energy_counter_that_ran_backwards() -> None:
    clock = HandClock(0)
    sensor = TraceSensor(clock, power=lambda t: 20.0, energy=lambda t: 1000 - t)
    run = measure_steps(clock, sensor, times_s=[10], readings=32)
    assert (run.energy_j, run.energy_source) == (pytest.approx(200), "integrated power")


def test_steps_synchronize_the_device_and_window_edges_the_ranks_too() -> None:
    calls: list[str] = []
    clock = HandClock()

    class Counting(TraceSensor):
        def counters(self) -> dict[str, Counters]:
            calls.append("counters")
            return super().counters()

    waits = {"synchronize": lambda: calls.append("device"), "barrier": lambda: calls.append("ranks")}
    with monitor_of(clock, Counting(clock), **waits) as monitor:
        for _ in range(2):
            with monitor.step(tokens=1):
                calls.append("work")
    edge = ["device", "ranks", "counters"]
    step = ["device", "work", "device"]
    assert calls == [*edge, *step, *step, *edge]


def test_a_sensor_that_fails_ends_only_its_own_series_and_training_continues() -> None:
    clock = HandClock(0)
    dying = TraceSensor(clock, memory=lambda t: GB, power=lambda t: 100, dies_at_s=10)
    living = TraceSensor(clock, ("HOST",), memory=lambda t: 2 * GB, scope="host", name="other")
    with monitor_of(clock, dying, living) as monitor:
        run_steps(monitor, clock, 5)
        with monitor.paused():
            pass
        run_steps(monitor, clock, 5, 5)
    measured = monitor.finish()
    assert len(measured.steps) == 3
    lost, kept = measured.devices
    assert (lost.amu_gb, lost.energy_j, kept.amu_gb) == (None, None, pytest.approx(2))
    assert lost.unavailable["amu_gb"] == lost.unavailable["energy_j"] == "trace: GPU is lost"
    assert [sensor.failure for sensor in measured.sensors] == ["trace: GPU is lost", None]
    assert dying.calls == ["open", "close"]


def test_a_sensor_that_cannot_open_gives_every_figure_a_reason() -> None:
    class Missing(TraceSensor):
        def open(self) -> None:
            raise MetricsError("no driver answers")

    clock = HandClock()
    run = measure_steps(clock, Missing(clock))
    assert (run.amu_gb, run.pcu, run.energy_j) == (None, None, None)
    assert run.unavailable["pcu"] == run.unavailable["aec_w"] == "trace: no driver answers"


def test_a_run_without_a_measured_step_says_so() -> None:
    clock = HandClock()
    sensor = TraceSensor(clock, memory=lambda t: GB, power=lambda t: 5)
    run = measure_steps(clock, sensor, times_s=[1, 1], warmup_steps=5)
    assert (run.window_s, run.step_times_s, run.tokens, run.amu_gb, run.aec_w) == (0, (), 0, None, None)
    assert run.unavailable["amu_gb"] == "no step was measured"


def test_calls_out_of_order_are_refused() -> None:
    clock = HandClock()
    monitor = monitor_of(clock)
    with pytest.raises(MetricsError, match="monitor is new"):
        monitor.begin_step()
    monitor.start()
    with pytest.raises(MetricsError, match="started once"):
        monitor.start()
    with pytest.raises(MetricsError, match="without begin_step"):
        monitor.end_step(1)
    monitor.begin_step()
    with pytest.raises(MetricsError, match="twice"):
        monitor.begin_step()
    with pytest.raises(MetricsError, match="inside a step"):
        monitor.pause()
    monitor.end_step(1)
    monitor.pause()
    with pytest.raises(MetricsError, match="while paused"):
        monitor.begin_step()
    assert monitor.finish() is monitor.finish()
    with pytest.raises(MetricsError, match="0 or more"):
        EfficiencyMonitor(warmup_steps=-1)


def test_an_error_in_the_loop_stops_sampling_without_waiting_for_ranks() -> None:
    clock = HandClock()
    sensor = TraceSensor(clock, memory=lambda t: GB)
    waited: list[str] = []
    monitor = EfficiencyMonitor([sensor], barrier=lambda: waited.append("ranks"), clock=clock)
    with pytest.raises(ZeroDivisionError), monitor, monitor.step(tokens=1):
        raise ZeroDivisionError
    assert waited == ["ranks"]  # at the window's beginning alone
    assert sensor.calls == ["open", "close"]
    assert not sampling_threads()


def sampling_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "metrics-trace"]


def test_sampling_stops_where_finish_fails() -> None:
    clock = HandClock()
    sensor = TraceSensor(clock, memory=lambda t: GB)
    broken: list[str] = []

    def synchronize() -> None:
        if broken:
            raise RuntimeError("the device has failed")

    monitor = EfficiencyMonitor([sensor], synchronize, clock=clock)
    monitor.start()
    run_steps(monitor, clock, 1)
    broken.append("device")
    with pytest.raises(RuntimeError, match="device has failed"):
        monitor.finish()
    assert sensor.calls == ["open", "close"]
    assert not sampling_threads()
    with pytest.raises(MetricsError, match="monitor is closed"):
        monitor.finish()


def test_a_start_that_fails_half_way_closes_the_opened_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    start = SamplingThread.start

    def start_or_fail(self: SamplingThread) -> None:
        if sampling_threads():
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(SamplingThread, "start", start_or_fail)
    clock = HandClock()
    sensors = [TraceSensor(clock), TraceSensor(clock)]  # each slow, and so in a thread of its own
    with pytest.raises(RuntimeError, match="new thread"):
        monitor_of(clock, *sensors).start()
    assert [sensor.calls for sensor in sensors] == [["open", "close"]] * 2
    assert not sampling_threads()
