"""What the monitor with its sensors costs a training step: its own processor time, and on against off in turn.

Sensors sample ten times a second: the host's for real; RAPL, NVML and a trace from made-up sources that cost what
Python's part of them costs, for want of the devices. The step trains on one thread, so that processor time per step is
time per step, and holds what a free core would hide from the clock.

Blocks of one step give the narrowest interval for the time spent: what else goes on in the machine changes slowly.

    python3 tests/benchmarks/monitor_overhead.py [--pairs 500] [--steps 1] [--write]
"""

from __future__ import annotations

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
from replicas.nvml_replica import Driver, Gpu
from support.measured import Figure, options, report

from efficientbench.metrics import EfficiencyMonitor, HostSensor, NvmlSensor, RaplSensor, ReplaySensor
from efficientbench.metrics.monitoring.sampler import SensorSampler
from efficientbench.metrics.monitoring.sampling_threads import SamplingThread
from efficientbench.metrics.sensors.base import Sensor

INTERVAL_S = 0.1
TRACE_S = 7200
"""Longer than any measurement: a trace that ends is a sensor that has failed."""


@dataclass
class Overhead:
    """The monitor's cost, on against off in turn, in percent of a step."""

    processor: Figure
    """Share of a step's processor time, all threads together."""
    clock: Figure
    """Share of a step's time by the clock, in which a free core may hide a part."""
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
    """Turns sampling on and off: while it is off, the sampling threads sleep, and the clock that it is stands still.

    What comes due by the clock (looks for other processes, and at what memory is shared) so comes as often in the time
    that sampling is on as it does in a run.
    """

    def __init__(self) -> None:
        self.on = threading.Event()
        self._off_s = 0.0
        self._since_s = time.monotonic()

    def __call__(self) -> float:
        """The time passed while it was on."""
        return (time.monotonic() if self.on.is_set() else self._since_s) - self._off_s

    def turn_on(self) -> None:
        self._off_s += time.monotonic() - self._since_s
        self.on.set()

    def turn_off(self) -> None:
        self._since_s = time.monotonic()
        self.on.clear()


class SwitchedLock:
    """Stands in for the lock that ends a sampling thread, and holds the thread up while the switch is off.

    The thread wakes once more when it is turned on, and once more after it was turned off: each side has one.
    """

    def __init__(self, switch: Switch, thread: SamplingThread) -> None:
        self._switch = switch
        self._thread = thread
        self._lock = threading.Lock()
        self._lock.acquire()

    def acquire(self, timeout: float) -> bool:
        while not self._lock.acquire(timeout=timeout):
            if self._switch.on.is_set():
                return False
            self._switch.on.wait()
            timeout = self._thread.interval_s - time.monotonic() % self._thread.interval_s
        return True

    def release(self) -> None:
        self._lock.release()


@contextmanager
def switched() -> Iterator[Switch]:
    """Sampling threads that sleep while the switch is off.

    While it is on they keep the interval whatever it costs: to be turned on and off costs them more than a run does,
    and would stretch it.
    """
    switch = Switch()

    class Switched(SamplingThread):
        def __init__(self, samplers: Sequence[SensorSampler], interval_s: float, share_of_a_core: float) -> None:
            super().__init__(samplers, interval_s, share_of_a_core)
            self._ended = SwitchedLock(switch, self)  # type: ignore[assignment]

    with patch.multiple(
        "efficientbench.metrics.monitoring.sampling_threads", SamplingThread=Switched, MAXIMUM_SHARE_OF_A_CORE=1.0
    ):
        yield switch


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

    with switched() as switch, EfficiencyMonitor(sensors, sample_interval_s=INTERVAL_S, clock=switch) as monitor:
        switch.turn_on()
        monitored()  # opens the window, which is no part of a step
        switch.turn_off()
        generator = random.Random(0)
        for _ in range(pairs):
            for is_on in generator.sample([True, False], 2):
                if is_on:
                    switch.turn_on()
                cpu_s, wall_s = time.process_time(), time.monotonic()
                for _ in range(steps):
                    (monitored if is_on else step)()
                cpu[is_on].append(time.process_time() - cpu_s)
                wall[is_on].append(time.monotonic() - wall_s)
                if is_on:
                    switch.turn_off()
        switch.turn_on()
    failures = [sensor.failure for sensor in monitor.finish().sensors if sensor.failure]
    if failures:
        raise RuntimeError(f"a sensor failed, so that this is no cost of all: {failures}")
    samples = [max(device.samples.values()) for device in monitor.finish().devices]
    return Overhead(
        processor=cost("monitor on against off, a step's processor time", cpu),
        clock=cost("monitor on against off, a step by the clock", wall),
        step_ms=statistics.median(cpu[False]) / steps * 1e3,
        interval_s=sum(wall[True]) / min(samples),
    )


def cost(what: str, seconds: dict[bool, list[float]]) -> Figure:
    """Compare the blocks with the monitor (True) with those without, pair by pair, in percent.

    Over the typical block and not over each pair's own: the mean of such ratios lies above 1 where the two differ by
    noise alone.
    """
    typical_s = statistics.median(seconds[False])
    differences = [(on - off) / typical_s * 100 for on, off in zip(seconds[True], seconds[False], strict=True)]
    return Figure.with_bootstrap(what, differences, trimmed_mean, "%", n_of="pairs")


def trimmed_mean(values: Sequence[float]) -> float:
    """Without the tenth of them at either end, in which other programs had the machine."""
    cut = len(values) // 10
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1, help="steps in a block")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own = own_share(all_sensors(Path(folder)), arguments.pairs * arguments.steps // 2)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(all_sensors(Path(folder)), arguments.pairs, arguments.steps)
    figures = {
        "clock": found.clock,
        "processor": found.processor,
        "own": Figure("the monitor's own processor time, of a step", own * 100, "%"),
    }
    conditions = f"four sensors, a sample every {found.interval_s:.3f} s, one thread, {found.step_ms:.0f} ms a step"
    report(__file__, arguments, figures, conditions)


if __name__ == "__main__":
    main()
