"""The rate of a host's memory: of a tensor that its caches cannot hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from efficientbench.planning import generation_plan
from efficientbench.planning.generation_plan import memory_bytes_s, tensor_bytes

MIB = 2**20


def describe(cpus: Path, number: int, **files: str) -> None:
    """Describe a processor's level-3 cache as Linux does."""
    cache = cpus / f"cpu{number}" / "cache" / "index3"
    cache.mkdir(parents=True)
    for name, text in files.items():
        (cache / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("allowed", "wanted"),
    [
        # Each cache once, of those that this process can use.
        ({0, 1, 2, 3}, 4 * (32 + 96) * MIB),
        ({0, 1}, 4 * 32 * MIB),
        ({2}, 4 * 96 * MIB),
        # One of 1 MiB, one of unknown size, none at all.
        ({4}, 64 * MIB),
        ({5}, 64 * MIB),
        ({6}, 64 * MIB),
    ],
)
def test_the_tensor_is_four_times_the_caches(
    allowed: set[int], wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, size, shared in (
        (0, "32768K", "0-1"),
        (1, "32768K", "0-1"),
        (2, "98304K", "2-3"),
        (3, "98304K", "2-3"),
    ):
        describe(tmp_path, number, size=size, shared_cpu_list=shared)
    describe(tmp_path, 4, size="1024K", shared_cpu_list="4")
    describe(tmp_path, 5, shared_cpu_list="5")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: allowed)
    assert tensor_bytes(tmp_path) == wanted


def test_the_rate_counts_bytes_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_plan, "tensor_bytes", lambda: 8 * MIB)
    monkeypatch.setattr(generation_plan, "shortest_s", lambda work: 2.0)
    assert memory_bytes_s() == 8 * MIB
