"""The rate at which the processor and its memory exchange bytes, measured: no table has a host's bandwidth."""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable
from pathlib import Path

REPETITIONS = 15
"""Measurements of a rate; the shortest time counts."""
METHOD = "a sum of large tensors"
"""What is measured, for reports."""
CPUS = Path("/sys/devices/system/cpu")
"""Where Linux describes processors and their caches."""
SMALLEST_BYTES = 64 * 2**20
"""Of the tensor, also where Linux does not report how large the caches are."""


def memory_bytes_s() -> float:
    """Return the bytes a second that torch reads and writes in memory with the threads that it has."""
    import torch

    large = torch.ones(tensor_bytes() // torch.float32.itemsize, dtype=torch.float32)
    return 2 * large.nbytes / shortest_s(lambda: torch.add(large, 1.0, out=large))


def tensor_bytes(cpus: Path = CPUS) -> int:
    """Return the bytes of a tensor that is four times as large as the level-3 caches of this process's processors.

    A smaller one would stay in them, and its rate would be theirs.
    """
    caches: dict[str, int] = {}
    for number in os.sched_getaffinity(0):
        cache = cpus / f"cpu{number}" / "cache" / "index3"
        # Linux hides what it does not know.
        if (cache / "size").exists() and (cache / "shared_cpu_list").exists():
            kibibytes = (cache / "size").read_text(encoding="ascii").strip().removesuffix("K")
            caches[(cache / "shared_cpu_list").read_text(encoding="ascii")] = int(kibibytes) * 1024
    return max(SMALLEST_BYTES, 4 * sum(caches.values()))


def shortest_s(work: Callable[[], object]) -> float:
    """Return the shortest of several times of some work, s."""
    work()  # allocates, and starts the threads
    return min(timeit.repeat(work, repeat=REPETITIONS, number=1))
