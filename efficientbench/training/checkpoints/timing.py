"""Decide when a checkpoint is due by time, so that a kill loses a bounded time of training."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_S = 600.0
"""Least time between checkpoints by default, seconds."""
COST_FACTOR = 100
"""The default time between checkpoints, in times of what one holds up training: they then take 1 % at most."""


class TimeInterval:
    """Knows how long one rank has trained since the last checkpoint; of a run's ranks the first decides for all."""

    def __init__(self, asked_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to count with the set-up of this attempt.

        Args:
            asked_s: the time between checkpoints, s; None: the default.
            clock: a monotonic clock in seconds.
        """
        self._asked_s, self._clock = asked_s, clock
        self._since_s = self._begin_s = clock()
        self._held_up_s = 0.0
        self.longest_s = self.bound_s
        """The longest bound that held so far, s."""

    @property
    def bound_s(self) -> float:
        """Time after which a checkpoint is due, s."""
        return max(LEAST_S, COST_FACTOR * self._held_up_s) if self._asked_s is None else self._asked_s

    def is_due(self) -> bool:
        """Return whether the last checkpoint is that long ago."""
        return self._clock() - self._since_s >= self.bound_s

    def announcement(self, first_step: int) -> str:
        """Return what a kill loses, in words; `first_step`: the first after which a checkpoint may fall due by time."""
        return (
            f"a kill loses at most {self.bound_s:,.4g} s of training and the step under way: a checkpoint follows that "
            f"long after the one before, from step {first_step:,} on"
        )

    def begins(self) -> None:
        """Note that a checkpoint begins to hold up training."""
        self._begin_s = self._clock()
        self.longest_s = max(self.longest_s, self.bound_s)

    def ends(self, saved: bool) -> None:
        """Note that training continues.

        `saved`: whether a checkpoint was begun; False: an asynchronous one was completed, which held up training too.
        """
        now_s = self._clock()
        self._held_up_s = now_s - self._begin_s + (0.0 if saved else self._held_up_s)
        if saved:
            self._since_s = now_s
