"""Readings with holes and counters that wrap around, as traces through the sampler: n/a with the reason, or right."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.metrics_parts import GB, HandClock, TraceSensor, make_record

from efficientbench.metrics import ReplaySensor
from efficientbench.metrics.monitoring.aggregate import merge
from efficientbench.metrics.monitoring.measurement import RankMeasurement, RunMeasurement, StepTime
from efficientbench.metrics.monitoring.sampler import SensorSampler
from efficientbench.metrics.records.facts import Quality, RunFacts
from efficientbench.metrics.records.summarize import Summary, summarize
from efficientbench.metrics.report.headline import notes
from efficientbench.metrics.sensors.base import Sensor

FACTS = RunFacts(1000, 1000, 1, 6e3, 7e3, 8e3, None, "not part of this test")
WINDOW = ((5.0, 95.0),)
POWER_W = 300.0
ENERGY_J = POWER_W * 90

Signal = Callable[[float], float | None]


def steady(t: float) -> float:
    return POWER_W


@dataclass
class Trace:
    """A device's signals as functions of time; None: not read then."""

    memory: Signal = lambda t: 10 * GB
    utilization: Signal = lambda t: 0.5
    power: Signal = lambda t: None
    energy: Signal = lambda t: None

    def write(self, path: Path) -> Path:
        """Write readings 0.1 s apart."""
        info = {"uuid": "GPU-0", "name": "Trace 9000", "memory_capacity_bytes": 80 * GB, "memory_kind": "driver"}
        lines: list[dict] = [{"device": info, "scope": "gpu"}]
        for tenth in range(1001):
            t = tenth / 10
            reading = {"memory_used_bytes": self.memory(t), "utilization": self.utilization(t)}
            reading |= {"power_w": self.power(t), "energy_j": self.energy(t)}
            lines.append({"time_s": t, "device": "GPU-0", **reading})
        path.write_text("\n".join(map(json.dumps, lines)))
        return path


def sampled(folder: Path, trace: Trace, windows: Sequence[tuple[float, float]] = WINDOW) -> RunMeasurement:
    """Replay a trace and sample it every 0.1 s."""
    clock = HandClock(0.0)
    return sampled_sensor(ReplaySensor(trace.write(folder / "trace.jsonl"), clock), clock, windows)


def sampled_sensor(sensor: Sensor, clock: HandClock, windows: Sequence[tuple[float, float]] = WINDOW) -> RunMeasurement:
    """Sample a sensor every 0.1 s by the monitor's own sampler."""
    sampler = SensorSampler(sensor, clock)
    sampler.open()
    for tenth in range(1, 1000):
        clock.now_s = tenth / 10
        sampler.sample()
        if any(clock.now_s == begin_s for begin_s, _ in windows):
            sampler.begin_interval()
        if any(clock.now_s == end_s for _, end_s in windows):
            sampler.end_interval()
    sampler.close()
    devices = tuple(sampler.measure(windows))
    return merge([RankMeasurement(0, tuple(windows), (StepTime(1, 90.0, 1000),), devices, (sampler.state(),))])


def figures(folder: Path, trace: Trace, windows: Sequence[tuple[float, float]] = WINDOW) -> Summary:
    return summarize(sampled(folder, trace, windows), FACTS, Quality())


def missing(signal: Signal, begin_s: float, end_s: float) -> Signal:
    return lambda t: None if begin_s < t < end_s else signal(t)


def wraps(power_w: float, range_j: float) -> Signal:
    return lambda t: power_w * t % range_j


def test_power_missing_for_most_of_the_window_gives_no_energy(tmp_path: Path) -> None:
    # Busy in the hole and idle outside of it, so that the readings around it are far off.
    trace = Trace(power=missing(lambda t: 60.0, 10.0, 90.0))
    summary = figures(tmp_path, trace)
    assert (summary.values["energy_j"], summary.values["aec_w"]) == (None, None)
    assert summary.unavailable["energy_j"] == "readings cover 10 s of the 90 s measured, with a gap of 80 s"
    assert summary.unavailable["energy_j_per_token"] == summary.unavailable["energy_j"]
    assert (summary.values["amu_gb"], summary.values["pcu"]) == pytest.approx((10, 0.5))


def test_a_gap_over_a_third_of_the_windows_voids_each_quantity(tmp_path: Path) -> None:
    windows = ((5.0, 35.0), (55.0, 75.0))  # 50 s, of which 19 lie in the hole
    hole = (24.0, 63.0)
    names = {"memory": "amu_gb", "utilization": "pcu", "power": "energy_j"}
    for quantity, figure in names.items():
        signals = {"power": steady} | {quantity: missing(getattr(Trace(power=steady), quantity), *hole)}
        summary = figures(tmp_path, Trace(**signals), windows)
        assert [summary.values[name] is None for name in names.values()] == [name == figure for name in names.values()]
        assert summary.unavailable[figure] == "readings cover 31 s of the 50 s measured, with a gap of 11 s"


def test_many_gaps_add_up_and_a_short_one_is_bridged(tmp_path: Path) -> None:
    summary = figures(tmp_path, Trace(power=lambda t: steady(t) if t % 5 < 4 else None))
    assert summary.values["energy_j"] is None
    assert "with a gap of 1.1 s" in summary.unavailable["energy_j"]
    short = figures(tmp_path, Trace(power=missing(steady, 50.0, 54.0)))
    assert short.values["energy_j"] == pytest.approx(ENERGY_J)


def every(interval_s: float, from_s: float = 0.0) -> Signal:
    """Power that is read at these intervals alone, from some time on."""
    return lambda t: POWER_W if t < from_s or t % interval_s == 0 else None


def test_a_stretched_sampling_interval_is_no_gap() -> None:
    clock = HandClock(0.0)
    run = sampled_sensor(TraceSensor(clock, power=every(0.5, from_s=50.0)), clock)  # type: ignore[arg-type]
    assert run.energy_j == pytest.approx(ENERGY_J)


def test_too_few_readings_of_a_quantity_give_no_mean() -> None:
    clock = HandClock(0.0)
    run = sampled_sensor(TraceSensor(clock, memory=lambda t: GB, power=every(5.0)), clock)  # type: ignore[arg-type]
    assert run.unavailable["energy_j"] == "power was read 19 times in the windows, and its mean needs 20"
    assert run.samples == {"memory": 901, "power": 19}
    assert run.sample_intervals_s == pytest.approx({"memory": 90 / 901, "power": 90 / 19})


def test_a_counter_that_wrapped_above_its_start_is_rejected(tmp_path: Path) -> None:
    # From 1,500 J to 4,500 J, over 27,000 J and three wraps.
    wrapping = wraps(POWER_W, 8000)
    alone = figures(tmp_path, Trace(energy=wrapping))
    assert alone.values["energy_j"] is None
    assert alone.unavailable["energy_j"] == (
        "the energy counter wrapped around or restarted, and power cannot replace it: the trace holds no such reading"
    )
    polled = figures(tmp_path, Trace(energy=wrapping, power=steady))
    assert polled.values["energy_j"] == pytest.approx(ENERGY_J, rel=1e-3)
    assert polled.values["energy_source"] == "integrated power"
    # A wrap between two windows is none inside of them.
    apart = figures(tmp_path, Trace(energy=wraps(POWER_W, 18_000)), ((10.0, 50.0), (65.0, 95.0)))
    assert apart.values["energy_j"] == pytest.approx(POWER_W * 70, rel=1e-3)


def stands_still(begin_s: float, end_s: float, caught_up: bool = False) -> Signal:
    """Return a counter that stands still for a while, and then goes on from there, or from where it should be."""
    return lambda t: POWER_W * (min(t, begin_s) if t < end_s else t if caught_up else t - (end_s - begin_s))


def test_a_counter_that_stands_still_is_a_hole_like_any_other() -> None:
    """20 of 64 s, of which a report knew nothing."""
    windows = ((10.0, 74.0),)

    def run(energy: Signal, power: Signal | None = None) -> RunMeasurement:
        clock = HandClock(0.0)
        return sampled_sensor(TraceSensor(clock, energy=energy, power=power), clock, windows)  # type: ignore[arg-type]

    lost = run(stands_still(30.5, 50.5))
    assert lost.energy_j is None
    assert lost.unavailable["energy_j"].startswith("the energy counter stood still for 20")
    assert "of the 64 s measured, and power cannot replace it" in lost.unavailable["energy_j"]
    polled = run(stands_still(30.5, 50.5), steady)
    assert (polled.energy_source, polled.energy_j) == ("integrated power", pytest.approx(POWER_W * 64))
    assert run(stands_still(60.5, 1000.0)).energy_j is None
    before = run(stands_still(2.0, 9.0))
    assert (before.energy_source, before.energy_j) == ("counter", pytest.approx(POWER_W * 64))
    # One that was late and has counted all is right, and so is one that counts in large units.
    assert run(stands_still(30.5, 50.5, caught_up=True)).energy_j == pytest.approx(POWER_W * 64)
    coarse = run(lambda t: POWER_W * (t // 9 * 9))
    assert (coarse.energy_source, coarse.energy_j) == ("counter", pytest.approx(POWER_W * 63))


def test_a_contradiction_of_counter_and_power_is_reported(tmp_path: Path) -> None:
    alike, half = (
        sampled(tmp_path, Trace(power=steady, energy=lambda t: share * POWER_W * t))  # noqa: B023
        for share in (1.15, 0.5)
    )
    assert (alike.energy_source, alike.energy_doubt) == ("counter", None)
    assert half.energy_j == pytest.approx(ENERGY_J / 2, rel=1e-3)
    said = "Trace 9000 (GPU-0) counted 1.35e+04 J, and its polled power gives 2.7e+04 J: one of them is wrong"
    assert half.energy_doubt == said
    assert f"gqa_1.5B: {said}." in notes([make_record({"energy_doubt": said})])
