"""The threads that take samples: drivers that hang, the interval kept, and what it may cost."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.metrics_parts import GB, HandClock, TraceSensor, monitor_of, run_steps
from support.quiet import eventually

from efficientbench.metrics import EfficiencyMonitor
from efficientbench.metrics.monitoring import sampler, sampling_threads
from efficientbench.metrics.sensors.base import Sample

pytestmark = pytest.mark.alone


@dataclass
class Hanging(TraceSensor):
    """Hangs in whatever thread samples it, until released."""

    hangs: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def sample(self, time_s: float) -> list[Sample]:
        if threading.current_thread() is not threading.main_thread():
            self.hangs.set()
            self.release.wait(20)
        return super().sample(time_s)


def limit_patience(monkeypatch: pytest.MonkeyPatch, patience_s: float) -> None:
    """Let sensors fail that have not answered for so long."""
    for module in (sampler, sampling_threads):
        monkeypatch.setattr(module, "PATIENCE_S", patience_s)


def test_a_hung_driver_does_not_hang_training(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_patience(monkeypatch, 0.05)
    clock = HandClock(0)
    sensor = Hanging(clock, memory=lambda t: GB)
    begin_s = time.monotonic()
    monitor = EfficiencyMonitor([sensor], sample_interval_s=0.001, clock=clock)
    monitor.start()
    assert sensor.hangs.wait(5)
    with monitor.step(tokens=100):
        clock.pass_time(1)
    measured = monitor.finish()
    sensor.release.set()
    assert time.monotonic() - begin_s < 5
    assert len(measured.steps) == 1
    assert "has not answered" in measured.devices[0].unavailable["amu_gb"]


def test_a_slow_sensor_has_its_own_thread_and_quick_sensors_share_one() -> None:
    read: list[str] = []
    slow = Hanging(HandClock(), name="slow")
    a = TraceSensor(HandClock(), memory=lambda t: reads(read, "a"), name="a", is_slow=False)
    b = TraceSensor(HandClock(), memory=lambda t: reads(read, "b"), name="b", is_slow=False)
    monitor = EfficiencyMonitor([slow, a, b], sample_interval_s=0.01)
    monitor.start()
    assert slow.hangs.wait(5)
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("metrics-")}
    read.clear()
    deadline_s = time.monotonic() + 10
    while (least := min(read.count("a"), read.count("b"))) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    slow.release.set()
    monitor.close()
    assert names == {"metrics-slow", "metrics-a+b"}
    assert least >= 3


def test_sensors_are_sampled_on_after_a_sensor_in_their_shared_thread_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_patience(monkeypatch, 0.3)
    read: list[str] = []
    driver = Hanging(HandClock(), memory=lambda t: GB, name="driver", is_slow=False)
    other = TraceSensor(HandClock(), memory=lambda t: reads(read, "other"), name="other", is_slow=False)
    monitor = EfficiencyMonitor([driver, other], sample_interval_s=0.01)
    monitor.start()
    assert driver.hangs.wait(5)
    hung = next(thread for thread in threading.enumerate() if thread.name == "metrics-driver+other")
    read.clear()
    deadline_s = time.monotonic() + 10
    while len(read) < 5 and time.monotonic() < deadline_s:
        with monitor.step(tokens=1):  # whose end looks whether a sensor hangs
            time.sleep(0.02)
    assert len(read) >= 5
    driver.release.set()
    hung.join(timeout=5)  # the thread that was given up ends with the reading that kept it
    assert not hung.is_alive()
    measured = monitor.finish()
    assert [state.failure for state in measured.sensors] == ["driver: the driver has not answered for 0.3 s", None]


def test_a_driver_that_hangs_on_opening_does_not_hang_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "OPENING_PATIENCE_S", 0.1)
    opens = threading.Event()

    class Starting(TraceSensor):
        def open(self) -> None:
            opens.wait(20)

    sensor, other = Starting(HandClock(), name="driver"), TraceSensor(HandClock(), memory=lambda t: GB, name="other")
    begin_s = time.monotonic()
    monitor = EfficiencyMonitor([sensor, other], sample_interval_s=0.01)
    monitor.start()
    with monitor.step(tokens=1):
        opens.set()  # which is too late
    measured = monitor.finish()
    assert time.monotonic() - begin_s < 5
    assert [state.failure for state in measured.sensors] == ["driver: the driver has not answered for 0.1 s", None]
    assert [device.amu_gb for device in measured.devices] == [pytest.approx(1)]
    assert sensor.calls == ["close"]


def test_a_slow_reading_is_not_blamed_on_the_next_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_patience(monkeypatch, 1.0)
    driver = Hanging(HandClock(), memory=lambda t: GB, name="driver", is_slow=False)
    other = Hanging(HandClock(), memory=lambda t: GB, name="other", is_slow=False)
    monitor = EfficiencyMonitor([driver, other], sample_interval_s=0.01, warmup_steps=9)
    with monitor:
        assert driver.hangs.wait(5)
        time.sleep(1.1)
        driver.release.set()
        assert other.hangs.wait(5)
        with monitor.step(tokens=1):  # whose end looks whether a sensor hangs
            pass
        other.release.set()
    assert [state.failure for state in monitor.finish().sensors] == [None, None]


def test_a_closed_sensor_is_not_sampled_after_a_hung_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_patience(monkeypatch, 0.05)

    class Called(TraceSensor):
        def sample(self, time_s: float) -> list[Sample]:
            self.calls.append("sample")
            return super().sample(time_s)

    driver = Hanging(HandClock(), name="driver", is_slow=False)
    other = Called(HandClock(), name="other", is_slow=False)
    monitor = EfficiencyMonitor([driver, other], sample_interval_s=0.01)
    monitor.start()
    assert driver.hangs.wait(5)
    hung = next(thread for thread in threading.enumerate() if thread.name == "metrics-driver+other")
    monitor.close()
    driver.release.set()
    hung.join(timeout=5)
    assert not hung.is_alive()
    assert other.calls[-1] == "close"


@pytest.mark.parametrize(
    "garbage",
    [None, [("GPU-0", 1.0)], [Sample(2.0, "GPU-0", "much")], [Sample(2.0, "GPU-7", 1.0)]],  # type: ignore[arg-type]
)
def test_an_invalid_sample_ends_only_its_own_series(garbage: Any) -> None:
    class Garbled(TraceSensor):
        def sample(self, time_s: float) -> list[Sample]:
            return super().sample(time_s) if time_s < 2 else garbage  # type: ignore[no-any-return]

    clock = HandClock(0)
    sensor = Garbled(clock, memory=lambda t: 3.0 * GB)
    with monitor_of(clock, sensor) as monitor:
        run_steps(monitor, clock, 1, 1)
        monitor.pause()
        monitor.latest_samples()
    measured = monitor.finish()
    failure = measured.sensors[0].failure
    assert failure.startswith("trace: ")
    assert (measured.devices[0].memory_idle_gb, measured.devices[0].unavailable["amu_gb"]) == (3, failure)


def test_a_sensor_that_has_failed_has_no_newest_sample() -> None:
    clock = HandClock(0)
    sensor = TraceSensor(clock, memory=lambda t: GB, dies_at_s=1)
    with monitor_of(clock, sensor) as monitor:
        with monitor.step(tokens=1):
            assert [sample.memory_used_bytes for sample in monitor.latest_samples()] == [GB]
            clock.pass_time(1)
        monitor.pause()
        assert monitor.latest_samples() == []


def test_a_reading_of_more_than_half_the_interval_does_not_double_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficientbench.metrics.monitoring.sampling_threads.MAXIMUM_SHARE_OF_A_CORE", 1.0)

    class Slow(TraceSensor):
        def sample(self, time_s: float) -> list[Sample]:
            time.sleep(0.06)
            return super().sample(time_s)

    sensor = Slow(HandClock(), memory=lambda t: GB)
    with EfficiencyMonitor([sensor], sample_interval_s=0.1) as monitor, monitor.step(tokens=1):
        time.sleep(1.6)
    # Sixteen, one more at each end of the window; eight if every other were left out.
    assert monitor.finish().devices[0].samples["memory"] >= 12


@pytest.mark.parametrize("step_s", [0.05, 0.1, 0.2, 0.3, 0.0618, 1.0])
def test_no_part_of_a_step_hides_between_samples(step_s: float) -> None:
    """Power that is high in a quarter of every step, whose length the interval divides or not."""
    times_s = [1000.0]
    while len(times_s) < 2000:
        times_s.append(sampling_threads.due_s(times_s[-1], 0.1))
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(times_s[1:])]
    assert (min(gaps_s), max(gaps_s)) == pytest.approx((0.075, 0.125), abs=0.001)
    for quarter in range(4):
        seen = sum(int(time_s % step_s / step_s * 4) % 4 == quarter for time_s in times_s)
        assert seen / len(times_s) == pytest.approx(0.25, abs=0.04)


def test_an_interval_that_stretches_is_as_long_as_the_cost_asks() -> None:
    """A cost that differs by a percent from round to round must not choose the rounds' places anew."""
    times_s, generator = [40_000.0], random.Random(0)
    while len(times_s) < 2000:
        interval_s = sampling_threads.stretched_s(0.1, 0.115 * generator.uniform(0.99, 1.01))
        times_s.append(sampling_threads.due_s(times_s[-1] + interval_s / 4, interval_s))
    assert (times_s[-1] - times_s[0]) / (len(times_s) - 1) == pytest.approx(0.12, rel=0.01)


def reads(read: list[str], name: str) -> float:
    read.append(name)
    return GB


def test_sampling_slows_down_where_it_is_costly() -> None:
    taken_s: list[float] = []

    class Costly(TraceSensor):
        def sample(self, time_s: float) -> list[Sample]:
            until_s = time.thread_time() + 0.01
            while time.thread_time() < until_s:
                pass
            taken_s.append(time.monotonic())
            return super().sample(time_s)

    sensors = TraceSensor(HandClock()), Costly(HandClock())
    samplers = [sampler.SensorSampler(sensor, time.monotonic) for sensor in sensors]
    threads = sampling_threads.sampling_threads(samplers, interval_s=0.2)
    for one in samplers:
        one.open()
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    for thread in threads:
        thread.stop()
    # On a slow machine, waking up alone costs more than the share of 0.2 s.
    assert 0.2 <= threads[0].interval_s < 1
    # 10 ms of work at half of 0.4 % of a core: one sample in 5 s.
    assert 4.9 <= threads[1].interval_s < 20
    assert len(taken_s) == 3  # at the opening, and two until the cost is known


def test_samples_come_at_the_interval_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the thread may take as long as it does: on a slow machine its share of a core would stretch the interval.
    monkeypatch.setattr("efficientbench.metrics.monitoring.sampling_threads.MAXIMUM_SHARE_OF_A_CORE", 1.0)

    def sampled() -> tuple[int, float]:
        sensor = TraceSensor(HandClock(), memory=lambda t: GB)
        with EfficiencyMonitor([sensor], sample_interval_s=0.1) as monitor, monitor.step(tokens=1):
            time.sleep(1.25)
        device = monitor.finish().devices[0]
        return device.samples["memory"], device.sample_intervals_s["memory"]

    # One more at each end of the window. A busy machine wakes the thread late: one of several times it does not.
    seen = eventually(sampled, lambda found: 8 <= found[0] <= 15 and found[1] == pytest.approx(0.1, rel=0.3))
    assert seen is not None
