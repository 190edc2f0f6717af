"""What the monitor costs a real training step: its own processor time; and on against off, alternating in one run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median

import pytest
import torch

from metrics import EfficiencyMonitor, HostSensor

LIMIT = 0.005
PAIRS, STEPS = 24, 20


@pytest.fixture
def train_step() -> Iterator[Callable[[], None]]:
    """One optimizer step of about 25 ms on one core."""
    threads = torch.get_num_threads()
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
    yield step
    torch.set_num_threads(threads)


def sampling_s() -> float:
    """Processor time of the sampling threads so far, s."""
    threads = [t for t in threading.enumerate() if t.name.startswith("metrics-") and t.ident is not None]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(t.ident)) for t in threads if t.ident is not None)


@pytest.mark.proof
def test_the_monitor_takes_less_than_half_a_percent_of_a_step(train_step: Callable[[], None]) -> None:
    """All that runs on the monitor's account: the sampling thread, and the calls around each step."""
    calls_s = 0.0
    with EfficiencyMonitor([HostSensor()], sample_interval_s=0.1) as monitor:
        for step in range(200):
            before_s = time.thread_time()
            monitor.begin_step()
            begun_s = time.thread_time()
            train_step()
            after_s = time.thread_time()
            monitor.end_step(tokens=1024)
            ended_s = time.thread_time()
            if step == 0:  # which opened the window: no cost of a step
                first_sampling_s, begin_s = sampling_s(), time.monotonic()
                continue
            calls_s += (begun_s - before_s) + (ended_s - after_s)
        steps_s = time.monotonic() - begin_s
        monitor_s = calls_s + sampling_s() - first_sampling_s
    device = monitor.finish().devices[0]
    print(f"monitor: {monitor_s / steps_s:.3%} of a step, a sample every {device.sample_interval_s:.2f} s")
    assert monitor_s < LIMIT * steps_s
    assert device.samples > 0


@pytest.mark.proof
def test_on_and_off_alternating_show_no_larger_cost(train_step: Callable[[], None]) -> None:
    """Processor time of the whole process per step, in pairs of blocks.

    Processor time holds what the monitor takes even where a free core hides it from the clock. What other processes
    do to the caches is noise in it, so the test asks that the interval of the difference does not exclude the limit.
    """

    def monitored_s() -> float:
        monitor = EfficiencyMonitor([HostSensor()], sample_interval_s=0.1)
        monitor.start()
        with monitor.step(tokens=1024):  # opens the window, which is no part of a step
            train_step()
        begin_s = time.process_time()
        for _ in range(STEPS):
            with monitor.step(tokens=1024):
                train_step()
        spent_s = time.process_time() - begin_s
        monitor.finish()
        return spent_s

    def plain_s() -> float:
        train_step()
        begin_s = time.process_time()
        for _ in range(STEPS):
            train_step()
        return time.process_time() - begin_s

    generator = random.Random(0)
    differences = []
    for _ in range(PAIRS):
        blocks = [monitored_s, plain_s]
        generator.shuffle(blocks)
        spent_s = {block: block() for block in blocks}
        differences.append(spent_s[monitored_s] / spent_s[plain_s] - 1)
    resampled = sorted(median(generator.choices(differences, k=PAIRS)) for _ in range(2000))
    low, high = resampled[50], resampled[1949]
    print(f"on against off: {median(differences):+.3%} of a step, 95 % interval {low:+.3%} to {high:+.3%}")
    assert low < LIMIT
