"""What a rate counts: time, or of ranks that take turns on cores their processor time."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from efficientbench.config.load import resolve
from efficientbench.devices.registry import find_device
from efficientbench.worker.rates import Do, Task, _seconds, device_tasks


def computes() -> None:
    begin_s = time.process_time()
    while time.process_time() - begin_s < 0.01:
        pass


def waits() -> None:
    time.sleep(0.01)


@pytest.mark.parametrize(
    ("do", "ranks_per_core", "least_s", "most_s"),
    # Processor time is of all threads of this process: a time that passed may be a little less.
    [(waits, 1.0, 0.01, 9.0), (waits, 2.0, 0.0, 0.0099), (computes, 2.0, 0.02, 9.0), (computes, 0.5, 0.005, 9.0)],
)
def test_ranks_that_take_turns_on_cores_count_their_processor_time(
    monkeypatch: pytest.MonkeyPatch, do: Do, ranks_per_core: float, least_s: float, most_s: float
) -> None:
    monkeypatch.setattr(dist, "barrier", lambda: None)
    taken_s = _seconds(Task("matmul", 1.0, lambda: do, ranks_per_core=ranks_per_core), find_device("cpu"), count=5)
    assert taken_s is not None
    assert least_s <= taken_s <= most_s


def test_only_ranks_beyond_the_hosts_cores_take_turns() -> None:
    device, config = find_device("cpu"), resolve("gqa_0.5B", True, [])
    place = device.prepare(0)
    for at_once, share in ((1, 0.5), (2, 1.0), (4, 2.0)):
        tasks = device_tasks(config, 1, device, place, 0, at_once, threads=1, cores=2.0)
        assert {each.ranks_per_core for each in tasks} == {share}
