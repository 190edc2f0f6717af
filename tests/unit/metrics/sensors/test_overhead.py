"""What the monitor with all sensors costs a real training step; the benchmark with more rounds tells the figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.monitor_overhead import all_sensors, cost, measure, own_share
from support.quiet import eventually

from efficientbench.metrics.sensors.base import Sensor

LIMIT = 0.005


@pytest.fixture
def sensors(tmp_path: Path) -> Iterator[list[Sensor]]:
    threads = torch.get_num_threads()
    yield all_sensors(tmp_path)
    torch.set_num_threads(threads)


def test_noise_alone_shows_no_overhead() -> None:
    """Blocks that take half or twice as long by chance: the mean of their ratios would be a quarter above 1."""
    found = cost("noise", {True: [1.0, 2.0] * 50, False: [2.0, 1.0] * 50})
    assert found.value == pytest.approx(0)
    assert found.interval is not None
    assert found.interval[0] < 0 < found.interval[1]


@pytest.mark.proof
@pytest.mark.alone
def test_the_monitor_takes_less_than_half_a_percent_of_a_step(sensors: list[Sensor]) -> None:
    """The monitor's cost is that of its sampling threads and of its calls around each step."""
    # The least of three: what else the system does, such as fetching pages that it had evicted, only adds.
    share = min(own_share(sensors, steps=50) for _ in range(3))
    print(f"monitor: {share:.3%} of a step")
    assert share < LIMIT


@pytest.mark.proof
@pytest.mark.alone
def test_alternating_monitor_on_and_off_shows_no_larger_cost(sensors: list[Sensor]) -> None:
    """What other processes do to the caches is noise: one of several intervals of the difference includes the limit."""

    def lowest() -> float:
        found = measure(sensors, pairs=240, steps=1)
        print(found.processor, found.clock, sep="\n")
        assert found.processor.interval is not None
        assert found.clock.interval is not None
        return max(found.processor.interval[0], found.clock.interval[0])

    assert eventually(lowest, lambda percent: percent < LIMIT * 100) is not None
