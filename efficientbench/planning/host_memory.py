"""How fast the processor and its memory exchange bytes, measured: no table has a host's bandwidth."""

from __future__ import annotations

import timeit
from collections.abc import Callable

REPETITIONS = 15
"""Measurements of a rate; the shortest time counts."""
METHOD = "a sum of large tensors"
"""What is measured, for reports."""


def memory_bytes_s() -> float:
    """Return the bytes a second that torch reads and writes with the threads that it has, in a fraction of a second."""
    import torch

    large = torch.ones(2**24)
    return 2 * large.numel() * large.element_size() / shortest_s(lambda: torch.add(large, 1.0, out=large))


def shortest_s(work: Callable[[], object]) -> float:
    """Return the shortest of several times of some work, s."""
    work()  # allocates, and starts the threads
    return min(timeit.repeat(work, repeat=REPETITIONS, number=1))
