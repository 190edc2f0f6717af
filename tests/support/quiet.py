"""Measurements that a busy machine spoils, made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Measured = TypeVar("Measured")
TRIES = 8


def eventually(measure: Callable[[], Measured], holds: Callable[[Measured], bool]) -> Measured | None:
    """Return the first of several measurements for which something holds; None where it holds for none.

    Processes that share the cores make time pass in which a thread wants to run and does not: a fault in what is tested
    spoils every measurement, they spoil some.
    """
    return next((found for found in (measure() for _ in range(TRIES)) if holds(found)), None)
