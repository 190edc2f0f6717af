"""The idle power before a run, and the energy beyond it."""

from __future__ import annotations

import pytest
from support.metrics_parts import HandClock, TraceSensor, monitor_of, run_steps

from efficientbench.metrics import merge
from efficientbench.metrics.monitoring import monitor as monitor_module
from efficientbench.metrics.monitoring.idle_power import NOT_READ, PowerReading, idle_power_w
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.facts import Quality, RunFacts
from efficientbench.metrics.records.summarize import summarize

FACTS = RunFacts(1000, 1000, 2, 6e3, 7e3, 8e3, 1e6, "datasheet")


def test_idle_power_comes_from_a_growing_counter_or_else_from_polled_power() -> None:
    counted = [{"A": PowerReading(0.0, 100.0, 999.0)}, {"A": PowerReading(2.0, 220.0, 999.0)}]
    polled = [{"A": PowerReading(0.0, None, 50.0)}, {"A": PowerReading(2.0, None, 70.0)}]
    still = [{"A": PowerReading(0.0, 5.0, 50.0)}, {"A": PowerReading(2.0, 5.0, 70.0)}]
    assert [idle_power_w(each) for each in (counted, polled, still)] == [{"A": 60.0}] * 3
    assert idle_power_w([{}, {}]) == {}
    assert idle_power_w([{"A": PowerReading(0.0, None, None)}]) == {}


def measured(monkeypatch: pytest.MonkeyPatch, idle_s: float = 2.0, idle_w: float = 50.0) -> RunMeasurement:
    """Measure ten seconds at 200 W on each of two devices that took `idle_w` before."""
    clock = HandClock(0.0)
    monkeypatch.setattr(monitor_module.time, "sleep", clock.pass_time)
    begin_s = idle_s + 1

    def power(time_s: float) -> float:
        return idle_w if time_s < begin_s else 200.0

    def energy(time_s: float) -> float:
        return idle_w * min(time_s, begin_s) + 200.0 * max(0.0, time_s - begin_s)

    sensor = TraceSensor(clock, ("A", "B"), power=power, energy=energy)
    with monitor_of(clock, sensor, idle_s=idle_s) as monitor:
        assert clock.now_s == pytest.approx(idle_s)
        clock.pass_time(1)
        run_steps(monitor, clock, *[1.0] * 10)
    return merge([monitor.finish()])


def test_net_energy_is_energy_beyond_idle_power(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summarize(measured(monkeypatch), FACTS, Quality())
    values = summary.values
    assert values["power_idle_w"] == pytest.approx(100)
    assert (values["energy_j"], values["energy_net_j"]) == (pytest.approx(4000), pytest.approx(3000))
    assert values["energy_net_j_per_token"] == pytest.approx(3000 / values["tokens"])


def test_a_run_that_does_not_wait_for_idle_has_only_gross_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summarize(measured(monkeypatch, idle_s=0.0), FACTS, Quality())
    assert summary.values["energy_j"] == pytest.approx(4000)
    for name in ("power_idle_w", "energy_net_j", "energy_net_j_per_token"):
        assert summary.values[name] is None
        assert NOT_READ in summary.unavailable[name]


def test_a_device_that_was_busy_before_has_no_net_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summarize(measured(monkeypatch, idle_w=250.0), FACTS, Quality())
    assert summary.values["power_idle_w"] == pytest.approx(500)
    assert summary.unavailable["energy_net_j"] == "the devices took no more power than before the model was built"


def test_sensors_without_power_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    monkeypatch.setattr(monitor_module.time, "sleep", clock.pass_time)
    sensor = TraceSensor(clock, memory=lambda t: 1.0, unavailable={"power_w": "none", "energy_j": "none"})
    with monitor_of(clock, sensor, idle_s=2.0):
        assert clock.now_s == 100
