"""Account for the wall time of a fine-tuning, by what the Trainer reports to its callbacks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from efficientbench.metrics.records.time_spent import TimeSpent


class Spent(TrainerCallback):
    """Sorts the wall time of a rank by the parts of `TimeSpent`: at any moment it counts for one of them.

    It stands behind the callback that measures, which waits for the device at the end of each step; `StepBegins` stands
    before it. What lies between two events belongs to the second one, such as a checkpoint to `on_save`.
    """

    def __init__(
        self, begin_s: float, warmup_steps: int, resumed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with the set-up.

        Args:
            begin_s: when the run began, on `clock`.
            warmup_steps: first steps, which compile and fill caches.
            resumed: whether earlier attempts have taken time of which nothing is known here.
            clock: a monotonic clock in seconds.
        """
        self._clock, self._since_s, self._resumed = clock, begin_s, resumed
        # The first step of all compiles, however many the warm-up has.
        self._first_steps = max(1, warmup_steps)
        self._seconds = dict.fromkeys(TimeSpent.__dataclass_fields__, 0.0)
        self._between = "start_s"
        """What time between events counts for, unless an event says otherwise."""
        self._step_times_s: list[float] = []

    def step_begins(self) -> None:
        """Count the set-up, or later what the Trainer has waited for the step's examples, with an idle device."""
        self._count("start_s" if self._between == "start_s" else "data_wait_s")
        self._between = "rest_s"

    def evaluation_begins(self) -> None:
        """Count what came before a held-out loss; the Trainer has a callback for its end alone."""
        self._count(self._between)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._step_times_s.append(self._count("productive_s"))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._count("evaluation_s" if logs and "eval_loss" in logs else self._between)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._count("evaluation_s")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._count("checkpoints_s")

    def saved(self) -> None:
        """Count what came after the last step: the weights are written and read back."""
        self._count("checkpoints_s")

    def spent(self) -> TimeSpent | None:
        """Return where the time until now went; None where there were earlier attempts."""
        self._count(self._between)
        if self._resumed:
            return None
        first, later = self._step_times_s[: self._first_steps], self._step_times_s[self._first_steps :]
        usual_s = statistics.median(later or first or [0.0])
        excess_s = sum(max(0.0, time_s - usual_s) for time_s in first)
        seconds = dict(self._seconds)
        seconds["productive_s"] -= excess_s
        seconds["first_steps_s"] += excess_s
        return TimeSpent(**seconds)

    def _count(self, part: str) -> float:
        """Count the time since the last event for a part, and return it, s."""
        now_s = self._clock()
        passed_s, self._since_s = now_s - self._since_s, now_s
        self._seconds[part] += passed_s
        return passed_s


class StepBegins(TrainerCallback):
    """Reports each step before the callback that measures synchronizes the ranks."""

    def __init__(self, spent: Spent) -> None:
        self._spent = spent

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._spent.step_begins()
