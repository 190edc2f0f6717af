"""Decide when a run whose length nobody has set has measured for long enough."""

from __future__ import annotations

import time
from collections.abc import Callable

from efficientbench.config.schema import MeasurementConfig


class TimeLimit:
    """Knows how long one rank's attempt has measured; of a run's ranks the first decides for all."""

    def __init__(
        self, limit_s: float, measurement: MeasurementConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with step 1.

        Args:
            limit_s: the time of measured steps after which the run ends, s.
            measurement: has the steps of an attempt's warm-up, and the fewest to measure.
            clock: a monotonic clock in seconds.
        """
        self._limit_s, self._measurement, self._clock = limit_s, measurement, clock
        self._since_s = 0.0
        self.attempt_begins(0)

    def attempt_begins(self, steps_before: int) -> None:
        """Note that this attempt begins; earlier ones have trained `steps_before` steps."""
        self._first = steps_before + self._measurement.warmup_steps + 1

    def step_begins(self, step: int) -> None:
        """Note that a step begins."""
        if step == self._first:
            self._since_s = self._clock()

    def is_over(self, step: int) -> bool:
        """Return whether this step, which ends, is the last one to measure."""
        measured = step - self._first + 1
        return measured >= self._measurement.min_steps and self._clock() - self._since_s >= self._limit_s
