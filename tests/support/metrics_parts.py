"""Parts that several tests of `metrics` share: a clock moved by hand, a sensor that plays a trace, a record."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from efficientbench.metrics import EfficiencyMonitor, merge
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.summarize import nothing_measured
from efficientbench.metrics.sensors.base import Counters, DeviceInfo, Peaks, Sample, Scope, Sensor

GB = 10**9
AnySensor = TypeVar("AnySensor", bound=Sensor)


@dataclass
class HandClock:
    """A monotonic clock moved by hand."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds


def opened(sensor: AnySensor) -> AnySensor:
    """Open a sensor and return it."""
    sensor.open()
    return sensor


def monitor_of(clock: HandClock, *sensors: Sensor, **options: Any) -> EfficiencyMonitor:
    """Return a monitor on a clock moved by hand, whose threads take no sample during a test."""
    return EfficiencyMonitor(sensors, sample_interval_s=1e6, clock=clock, **options)


def run_steps(
    monitor: EfficiencyMonitor, clock: HandClock, *times_s: float, tokens: int = 100, readings: int = 0
) -> None:
    """Run one step of each of these times, with so many readings within it, as the monitor's threads would take."""
    for time_s in times_s:
        with monitor.step(tokens):
            for _ in range(readings):
                clock.pass_time(time_s / readings)
                for sampler in monitor._samplers:
                    sampler.sample()
            if not readings:
                clock.pass_time(time_s)


def measure_steps(
    clock: HandClock,
    *sensors: Sensor,
    times_s: Iterable[float] = (1,),
    tokens: int = 100,
    readings: int = 0,
    **options: Any,
) -> RunMeasurement:
    """Measure steps of these times on one rank."""
    with monitor_of(clock, *sensors, **options) as monitor:
        run_steps(monitor, clock, *times_s, tokens=tokens, readings=readings)
    return merge([monitor.finish()])


def measure_step(*sensors: Sensor, work: Callable[[], object] = lambda: None, **options: Any) -> RunMeasurement:
    """Measure one step of one rank, which does `work`."""
    with EfficiencyMonitor(sensors, **options) as monitor, monitor.step(tokens=1):
        work()
    return merge([monitor.finish()])


Signal = Callable[[float], float]


@dataclass
class TraceSensor(Sensor):
    """Plays signals given as functions of time, for one device or several, and fails at `dies_at_s`."""

    clock: Callable[[], float]
    uuids: tuple[str, ...] = ("GPU-0",)
    memory: Signal | None = None
    utilization: Signal | None = None
    power: Signal | None = None
    energy: Signal | None = None
    dies_at_s: float = float("inf")
    name: str = "trace"
    scope: Scope = "gpu"
    is_slow: bool = True
    unavailable: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(uuid, "Trace 9000", 80 * GB, "driver") for uuid in self.uuids]

    def sample(self, time_s: float) -> list[Sample]:
        if time_s >= self.dies_at_s:
            raise RuntimeError("GPU is lost")

        def value(signal: Signal | None) -> float | None:
            return None if signal is None else signal(time_s)

        return [Sample(time_s, u, value(self.memory), value(self.utilization), value(self.power)) for u in self.uuids]

    def counters(self) -> dict[str, Counters]:
        if self.energy is None:
            return {}
        return {uuid: Counters(energy_j=self.energy(self.clock())) for uuid in self.uuids}

    def peaks(self) -> dict[str, Peaks]:
        return {}


def make_record(values: Mapping[str, Any] | None = None, reason: str = "not part of this test") -> RunRecord:
    """Return a record in which nothing was measured but the fields in `values`."""
    given = dict(values or {})
    absent = nothing_measured(reason)
    fields: dict[str, Any] = {
        **absent.values,
        "status": "completed",
        # Repeats begin one after the other.
        "started_at": f"2026-01-02T03:04:05.{given.get('seed', 1234) % 10**6:06d}+00:00",
        "duration_s": 12.5,
        "formula_id": FORMULAS,
        "run": "gqa_1.5B",
        "variant": "gqa",
        "size": "1.5B",
        "smoke": False,
        "seed": 1234,
        "parameters": 1_543_714_304,
        "parameters_active": 1_543_714_304,
        "flops_per_token": 9.0e9,
        "devices": 1,
        "device_name": "Trace 9000",
        "dtype": "bf16",
        "seq_len": 2048,
        "micro_batch_size": 2,
        "global_batch_size": 16,
        **dict.fromkeys(("tp", "pp", "ep", "cp"), 1),
        "dp": given.get("devices", 1),
        "kernels": {"attention": "sdpa"},
        "config": {"training": {"seed": 1234}},
        "environment": {"python": "3.11.0"},
        "paths": {"steps": "steps.jsonl"},
        "unavailable": {name: why for name, why in absent.unavailable.items() if given.get(name) is None},
    }
    return RunRecord(**{**fields, **given})


def printed(show: Callable[..., None], *content: Any, width: int = 160) -> str:
    """Return what a function prints on a console of that width."""
    output = io.StringIO()
    show(*content, Console(file=output, width=width))
    return output.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
