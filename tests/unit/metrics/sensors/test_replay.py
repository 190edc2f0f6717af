"""Traces with known integrals, replayed: every figure to 0.1 %, whatever the sampling; and traces that are damaged."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.metrics_parts import GB, HandClock, TraceSensor, measure_steps, monitor_of, run_steps

from efficientbench.metrics import MetricsError, RecordingSensor, ReplaySensor, merge
from efficientbench.metrics.formulas.definitions import Windows
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement, RankMeasurement, SensorState, StepTime
from efficientbench.metrics.monitoring.series import DeviceSeries, Interval
from efficientbench.metrics.records.facts import Quality, RunFacts
from efficientbench.metrics.records.summarize import Summary, summarize
from efficientbench.metrics.sensors.base import Counters, Peaks, Sample
from efficientbench.metrics.sensors.replay import read_trace

FACTS = RunFacts(1000, 1000, 2, 6e3, 7e3, 8e3, None, "not part of this test")
WINDOWS = ((20.0, 50.0), (70.0, 110.0))
STEPS, TOKENS = 70, 64


@dataclass(frozen=True)
class Wave:
    """A mean, and a sine around it: its integral is known in closed form."""

    mean: float
    swing: float
    period_s: float

    def __call__(self, t: float) -> float:
        return self.mean + self.swing * math.sin(2 * math.pi * t / self.period_s)

    def integral(self) -> float:
        turn = 2 * math.pi / self.period_s
        return sum(
            self.mean * (e - b) + self.swing / turn * (math.cos(turn * b) - math.cos(turn * e)) for b, e in WINDOWS
        )


MEMORY, BUSY, POWER = Wave(40 * GB, 15 * GB, 17.0), Wave(0.6, 0.35, 9.0), Wave(300.0, 180.0, 13.0)
LENGTH_S = sum(end - begin for begin, end in WINDOWS)


def inside(t: float) -> bool:
    return any(begin <= t <= end for begin, end in WINDOWS)


def outside_differs(signal: Callable[[float], float], t: float, other: float) -> float:
    """What is outside of the windows is far off, so that whoever counts it is found out."""
    return signal(t) if inside(t) else other


def write(path: Path, uuids: Iterable[str], stamps: list[float], counter: bool, dies_s: float = math.inf) -> Path:
    lines: list[dict] = [
        {
            "device": {"uuid": u, "name": "Trace 9000", "memory_capacity_bytes": 80 * GB, "memory_kind": "driver"},
            "scope": "gpu",
        }
        for u in uuids
    ]
    energy_j, last_s = 5e6, stamps[0]
    for t in stamps:
        # The device's own counter runs on outside of the windows, at another power.
        energy_j += exact_energy(last_s, t)
        last_s = t
        for i, uuid in enumerate(uuids):
            if i > 0 and t > dies_s:
                continue
            reading = {
                "time_s": t,
                "device": uuid,
                "memory_used_bytes": outside_differs(MEMORY, t, 79 * GB),
                "utilization": outside_differs(BUSY, t, 0.0),
                "power_w": outside_differs(POWER, t, 5000.0),
            }
            lines.append({**reading, "energy_j": energy_j} if counter else reading)
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def exact_energy(begin_s: float, end_s: float) -> float:
    turn = 2 * math.pi / POWER.period_s
    return POWER.mean * (end_s - begin_s) + POWER.swing / turn * (math.cos(turn * begin_s) - math.cos(turn * end_s))


def stamps(seed: int) -> list[float]:
    """Irregular, 0.02 to 0.4 s apart, from before the first window to after the last; each edge is sampled."""
    generator, times_s = random.Random(seed), [3.0]
    while times_s[-1] < 125:
        times_s.append(times_s[-1] + generator.uniform(0.02, 0.4))
    edges = {edge for window in WINDOWS for edge in window}
    return sorted({*times_s, *edges})


def measure_trace(path: Path, windows: Windows) -> list[DeviceMeasurement]:
    """Return what the devices of a trace did over windows on its own clock, without a monitor's clock or thread."""
    measured = []
    for recorded in read_trace(path):
        series = DeviceSeries(recorded.info, recorded.scope)
        for time_s in recorded.times_s["power_w"]:
            values = [recorded.at(name, time_s) for name in ("memory_used_bytes", "utilization", "power_w")]
            series.add(Sample(time_s, recorded.info.uuid, *values))
        for begin_s, end_s in windows:
            begin, end = (Counters(energy_j=recorded.at("energy_j", at_s)) for at_s in (begin_s, end_s))
            series.intervals.append(Interval(begin, end, end_s - begin_s, Peaks()))
        measured.append(series.measure(windows, {}, None))
    return measured


def figures(path: Path) -> Summary:
    steps = tuple(StepTime(i + 1, LENGTH_S / STEPS, TOKENS) for i in range(STEPS))
    devices = tuple(measure_trace(path, WINDOWS))
    rank = RankMeasurement(0, WINDOWS, steps, devices, (SensorState("replay", "gpu", None),))
    return summarize(merge([rank]), FACTS, Quality())


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.booleans())
def test_every_figure_is_exact_to_a_thousandth(
    tmp_path_factory: pytest.TempPathFactory, seed: int, counter: bool
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    values = figures(write(path, ("A", "B"), stamps(seed), counter)).values
    expected = {
        "amu_gb": MEMORY.integral() / LENGTH_S / GB,
        "pcu": BUSY.integral() / LENGTH_S,
        "aec_w": POWER.integral() / LENGTH_S,
        "energy_j": 2 * POWER.integral(),
        "energy_j_per_token": 2 * POWER.integral() / (STEPS * TOKENS),
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert values["energy_source"] == ("counter" if counter else "integrated power")


@pytest.mark.parametrize("counter", [True, False])
def test_a_lost_device_leaves_no_figure_over_both_devices(tmp_path: Path, counter: bool) -> None:
    summary = figures(write(tmp_path / "trace.jsonl", ("A", "B"), stamps(1), counter, dies_s=80.0))
    for name in ("amu_gb", "pcu", "aec_w", "energy_j", "energy_j_per_token"):
        assert summary.values[name] is None, name
        assert re.fullmatch("B: readings cover (39.\\d|40) s of the 70 s measured", summary.unavailable[name]), name
    alone = measure_trace(tmp_path / "trace.jsonl", WINDOWS)[0]
    assert alone.energy_j == pytest.approx(POWER.integral(), rel=1e-3)
    # Up to where it died, the second device's figures stand.
    until = measure_trace(tmp_path / "trace.jsonl", (WINDOWS[0],))[1]
    assert until.energy_j == pytest.approx(exact_energy(*WINDOWS[0]), rel=1e-3)


def test_a_recorded_trace_replays_to_the_same_figures(tmp_path: Path) -> None:
    clock = HandClock(1000.0)
    source = TraceSensor(
        clock, ("A", "B"), lambda t: (t - 990) * GB, lambda t: 0.25, lambda t: t - 900, lambda t: 7 * t
    )

    def measured(sensor: TraceSensor | RecordingSensor | ReplaySensor) -> RankMeasurement:
        with monitor_of(clock, sensor, warmup_steps=1) as monitor:
            run_steps(monitor, clock, *[2.5] * 4)
        return monitor.finish()

    path = tmp_path / "trace.jsonl"
    first = measured(RecordingSensor(source, path, clock))
    clock.pass_time(5000)
    again = measured(ReplaySensor(path, clock))
    assert first.devices[0].energy_source == "counter"
    for before, after in zip(first.devices, again.devices, strict=True):
        energy = ("aec_w", "energy_j", "energy_source")
        for name in ("amu_gb", "pcu", *energy, "peak_memory_device_bytes", "memory_idle_gb"):
            assert getattr(after, name) == pytest.approx(getattr(before, name)), name
    assert again.sensors[0].failure is None


def test_a_trace_that_ends_early_ends_the_series_with_a_reason(tmp_path: Path) -> None:
    clock = HandClock(0)
    path = write(tmp_path / "trace.jsonl", ("A",), [0.0, 1.0, 2.0], counter=False)
    run = measure_steps(clock, ReplaySensor(path, clock), times_s=[10])
    assert run.unavailable["amu_gb"] == "replay: the trace trace.jsonl has ended"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no device"),
        ("{", "line 1: not a line of a trace"),
        ('{"device": "A", "time_s": 1, "power_w": 5}', "line 1: not a line of a trace .KeyError"),
        ('{"device": {"uuid": "A"}, "scope": "gpu"}', "line 1: not a line"),
    ],
)
def test_a_damaged_trace_is_refused_and_its_line_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "trace.jsonl").write_text(text)
    with pytest.raises(MetricsError, match=said):
        ReplaySensor(tmp_path / "trace.jsonl").open()
    with pytest.raises(MetricsError, match="cannot be read"):
        ReplaySensor(tmp_path / "none.jsonl").open()


def test_a_trace_with_time_running_backwards_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", ("A",), [1.0, 2.0, 1.5], counter=False)
    with pytest.raises(MetricsError, match="line 4: .*comes after"):
        ReplaySensor(path).open()
