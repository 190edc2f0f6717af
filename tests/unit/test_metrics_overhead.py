"""What the monitor with all sensors costs a real training step; the benchmark with more rounds tells the figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.monitor_overhead import Overhead, all_sensors, measure

LIMIT = 0.005


@pytest.fixture(scope="module")
def overhead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Overhead]:
    threads = torch.get_num_threads()
    yield measure(all_sensors(Path(tmp_path_factory.mktemp("sensors"))), pairs=20, steps=12)
    torch.set_num_threads(threads)


@pytest.mark.proof
def test_the_monitor_takes_less_than_half_a_percent_of_a_step(overhead: Overhead) -> None:
    """All that runs on the monitor's account: the sampling threads, and the calls around each step."""
    print(f"monitor: {overhead.own:.3%} of a step, a sample every {overhead.interval_s:.2f} s")
    assert overhead.own < LIMIT


@pytest.mark.proof
def test_on_and_off_alternating_show_no_larger_cost(overhead: Overhead) -> None:
    """What other processes do to the caches is noise: the interval of the difference must not exclude the limit."""
    print(f"on against off: {overhead.on_against_off:+.3%} of a step, {overhead.low:+.3%} to {overhead.high:+.3%}")
    assert overhead.low < LIMIT
