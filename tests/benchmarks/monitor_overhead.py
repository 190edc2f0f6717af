"""What the monitor with its sensors costs a training step: its own processor time, and on against off in turn.

Sensors sample ten times a second: the host's for real; RAPL, NVML and a trace from made-up sources that cost what
Python's part of them costs, for want of the devices. The step trains on one thread, so that processor time per step is
time per step, and holds what a free core would hide from the clock.

    python3 tests/benchmarks/monitor_overhead.py [--pairs 40] [--steps 12]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from support.nvml_replica import Driver, Gpu

from metrics import EfficiencyMonitor, HostSensor, NvmlSensor, RaplSensor, ReplaySensor
from metrics.sampler import SamplingThread, SensorSampler
from metrics.sensors.base import Sensor

INTERVAL_S = 0.1
TRACE_S = 7200
"""Longer than any measurement: a trace that ends is a sensor that has failed."""


@dataclass
class Overhead:
    """All as shares of a step's processor time.

    Looks for other processes, and at what memory is shared, come due by the clock, which runs on while the monitor is
    off: this counts them twice as often as they come.
    """

    on_against_off: float
    low: float
    high: float
    """95 % interval of it, by the bootstrap over pairs."""
    on_against_off_wall: float
    """The same by the clock."""
    step_ms: float
    interval_s: float
    """The longest mean interval that a sensor achieved."""


def training_step() -> Callable[[], None]:
    """One optimizer step, 25 to 70 ms on one core."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
    batch = torch.randn(1024, 512)

    def step() -> None:
        optimizer.zero_grad()
        layers(batch).square().mean().backward()
        optimizer.step()

    step()
    return step


def all_sensors(folder: Path) -> list[Sensor]:
    """Every sensor that can do without its device."""
    for number, (zone, name) in enumerate({"intel-rapl:0": "package-0", "intel-rapl:0:0": "dram"}.items()):
        (folder / zone).mkdir()
        for file, text in (("name", name), ("max_energy_range_uj", "262143328850"), ("energy_uj", f"{number}")):
            (folder / zone / file).write_text(f"{text}\n")
    device = {"uuid": "A", "name": "Trace 9000", "memory_capacity_bytes": None, "memory_kind": "driver"}
    lines = [{"device": device, "scope": "gpu"}]
    lines += [{"device": "A", "time_s": t / 10, "power_w": 5.0 + t % 7} for t in range(TRACE_S * 10)]  # type: ignore[dict-item]
    (folder / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    nvml = NvmlSensor(environment={}, nvml=Driver(Gpu("GPU-a")))
    return [HostSensor(), RaplSensor(folder), nvml, ReplaySensor(folder / "trace.jsonl")]


class Switch:
    """Stands in for the event that ends a sampling thread: while it is off, the thread sleeps and does not wake."""

    def __init__(self, on: threading.Event) -> None:
        self._on = on
        self._ended = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        self._on.wait()
        self._ended.wait(timeout_s)
        self._on.wait()  # turned off in between
        return self._ended.is_set()

    def set(self) -> None:
        self._ended.set()
        self._on.set()


@contextmanager
def switched() -> Iterator[threading.Event]:
    """Sampling threads that sleep, and do not even wake, while the event is clear."""
    on = threading.Event()

    class Switched(SamplingThread):
        def __init__(self, samplers: Sequence[SensorSampler], interval_s: float, share_of_a_core: float) -> None:
            super().__init__(samplers, interval_s, share_of_a_core)
            self._stop = Switch(on)  # type: ignore[assignment]

    with patch("metrics.sampler.SamplingThread", Switched):
        yield on
        on.set()


def sampling_s() -> float:
    """Processor time of the sampling threads so far."""
    threads = [t.ident for t in threading.enumerate() if t.name.startswith("metrics-") and t.ident is not None]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in threads)


def own_share(sensors: list[Sensor], steps: int) -> float:
    """What the sampling threads and the calls around each step take themselves, as a share of the steps' time."""
    step, calls_s = training_step(), 0.0
    with EfficiencyMonitor(sensors, sample_interval_s=INTERVAL_S) as monitor:
        with monitor.step(tokens=1024):  # opens the window, which is no part of a step
            step()
        sampled_s, first_s = sampling_s(), time.monotonic()
        for _ in range(steps):
            begin_s = time.thread_time()
            monitor.begin_step()
            begun_s = time.thread_time()
            step()
            ended_s = time.thread_time()
            monitor.end_step(tokens=1024)
            calls_s += (begun_s - begin_s) + (time.thread_time() - ended_s)
        return (calls_s + sampling_s() - sampled_s) / (time.monotonic() - first_s)


def measure(sensors: list[Sensor], pairs: int, steps: int) -> Overhead:
    """Blocks of steps with the monitor and without, in pairs of random order."""
    step = training_step()
    cpu: dict[bool, list[float]] = {True: [], False: []}
    wall: dict[bool, list[float]] = {True: [], False: []}

    def monitored() -> None:
        with monitor.step(tokens=1024):
            step()

    with switched() as on, EfficiencyMonitor(sensors, sample_interval_s=INTERVAL_S) as monitor:
        monitored()  # opens the window, which is no part of a step
        generator = random.Random(0)
        for _ in range(pairs):
            for is_on in generator.sample([True, False], 2):
                if is_on:
                    on.set()
                cpu_s, wall_s = time.process_time(), time.monotonic()
                for _ in range(steps):
                    (monitored if is_on else step)()
                cpu[is_on].append(time.process_time() - cpu_s)
                wall[is_on].append(time.monotonic() - wall_s)
                on.clear()
        on.set()
    failures = [sensor.failure for sensor in monitor.finish().sensors if sensor.failure]
    if failures:
        raise RuntimeError(f"a sensor failed, so that this is no cost of all: {failures}")
    differences = [a / b - 1 for a, b in zip(cpu[True], cpu[False], strict=True)]
    resampled = sorted(trimmed_mean(generator.choices(differences, k=pairs)) for _ in range(4000))
    samples = [device.samples for device in monitor.finish().devices]
    return Overhead(
        on_against_off=trimmed_mean(differences),
        low=resampled[100],
        high=resampled[3899],
        on_against_off_wall=trimmed_mean([a / b - 1 for a, b in zip(wall[True], wall[False], strict=True)]),
        step_ms=statistics.median(cpu[False]) / steps * 1e3,
        interval_s=sum(wall[True]) / min(samples),
    )


def trimmed_mean(values: list[float]) -> float:
    """Without the tenth of them at either end, in which other programs had the machine."""
    cut = len(values) // 10
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=12, help="steps in a block")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own = own_share(all_sensors(Path(folder)), arguments.pairs * arguments.steps // 2)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(all_sensors(Path(folder)), arguments.pairs, arguments.steps)
    print(f"a step takes {found.step_ms:.1f} ms; a sample of each sensor every {found.interval_s:.3f} s")
    print(f"own processor time: {own:.3%} of a step")
    interval = f"95 % interval {found.low:+.3%} to {found.high:+.3%}"
    print(
        f"on against off, {arguments.pairs} pairs: {found.on_against_off:+.3%} of a step's processor time, {interval}"
    )
    print(f"on against off by the clock: {found.on_against_off_wall:+.3%}")


if __name__ == "__main__":
    main()
