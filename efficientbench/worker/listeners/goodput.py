"""Count the wall time of a run by what it was spent on, over all attempts of the run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from efficientbench.devices.base import Device
from efficientbench.metrics.records.record_parts import TimeSpent
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.events import (
    CheckpointEnded,
    CheckpointStarted,
    Event,
    Listener,
    RecheckEnded,
    RecheckStarted,
    StepEnded,
    StepStarted,
    ValidationEnded,
    ValidationStarted,
)
from efficientbench.worker.listeners.monitoring import Measure

if TYPE_CHECKING:
    from efficientbench.training.data.batch import Batch
    from efficientbench.training.trainer import Trainer

STEPS = 1000
"""The usual step time is the median over this many of the newest steps."""

_BEGINS: dict[type[Event], str] = {
    StepStarted: "productive_s",
    RecheckStarted: "evaluation_s",
    ValidationStarted: "evaluation_s",
    CheckpointStarted: "checkpoints_s",
}
_ENDS = (StepEnded, RecheckEnded, ValidationEnded, CheckpointEnded)


class Goodput:
    """Counts one rank's wall time: each moment belongs to one part of `TimeSpent`.

    Two listeners belong to it: `begins` before all others, and `ends` right behind the one that measures.
    """

    def __init__(
        self,
        begin_s: float,
        device: Device,
        measure: Measure,
        warmup_steps: int,
        manifest: Manifest | None = None,
        lost_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the set-up.

        Args:
            begin_s: when this attempt began, on `clock`.
            device: this rank's device, in whose queue the waits for data are stamped.
            measure: knows the step times; comes before `ends` in the order of listeners.
            warmup_steps: first steps of each attempt, which compile and fill caches.
            manifest: the manifest of the checkpoint to resume from; None: the run starts at step 1.
            lost_s: how long earlier attempts worked after that checkpoint.
            clock: a monotonic clock in seconds.
        """
        self._device, self._measure, self._clock = device, measure, clock
        # The first step of all compiles, however many the warm-up has.
        self._first_steps = max(1, warmup_steps)
        kept = None if manifest is None else manifest.progress.get("goodput")
        self.is_known = manifest is None or kept is not None
        """Whether the times of earlier attempts are known."""
        self._seconds = dict.fromkeys(TimeSpent.__dataclass_fields__, 0.0) | (kept or {})
        self._seconds["restarts_s"] += lost_s
        # A branch, which has its trunk's manifest without times, begins as any other run.
        self._part = "restarts_s" if kept else "start_s"
        self._since_s = begin_s
        self._first: list[float] = []
        """Times of this attempt's first steps, without their waits for data."""
        self._later: deque[float] = deque(maxlen=STEPS)
        self._waits: list[tuple[Any, Any]] = []
        """Stamps before and after the wait for each micro-batch of the current step."""

    def attach(self, trainer: Trainer) -> None:
        """Stamp the waits for training batches."""
        trainer.batches.training_step = self._stamped(trainer.batches.training_step)  # type: ignore[method-assign, assignment]

    def begins(self, event: Event) -> None:
        """Note what begins; call it before all other listeners."""
        if isinstance(event, StepStarted):
            # A recheck before this step has read batches, too.
            self._waits.clear()
        part = _BEGINS.get(type(event))
        if part is not None:
            self._at(part)

    def ends(self, event: Event) -> None:
        """Note what has ended; call it right behind `measure`, before other listeners spend time of their own."""
        if isinstance(event, StepEnded):
            # The device has done all its work: `measure` has waited for it.
            waited_s = sum(self._device.between_s(before, after) for before, after in self._waits)
            self._seconds["productive_s"] -= waited_s
            self._seconds["data_wait_s"] += waited_s
            times = self._first if len(self._first) < self._first_steps else self._later
            times.append(self._measure.step_time_s - waited_s)
        if isinstance(event, _ENDS):
            self._at("rest_s")

    def evaluating(self, listener: Listener) -> Listener:
        """Return the listener with its time counted as evaluation."""

        def called(event: Event) -> None:
            part = self._part
            self._at("evaluation_s")
            listener(event)
            self._at(part)

        return called

    def spent(self) -> TimeSpent | None:
        """Return the time until now by its parts; None where the times of earlier attempts are not known."""
        return TimeSpent(**self._until_now()) if self.is_known else None

    def progress(self) -> dict[str, Any]:
        """Return the state that the next attempt resumes from, as plain data for the checkpoint."""
        return {"goodput": self._until_now()} if self.is_known else {}

    def _at(self, part: str) -> None:
        now_s = self._clock()
        self._seconds[self._part] += now_s - self._since_s
        self._part, self._since_s = part, now_s

    def _until_now(self) -> dict[str, float]:
        """Return the seconds of each part; what first steps took beyond the usual step time is a part of its own."""
        self._at(self._part)
        return TimeSpent.first_steps_apart(self._seconds, self._first, self._later)

    def _stamped(self, batches: Callable[[int], Iterator[Batch]]) -> Callable[[int], Iterator[Batch]]:
        # Stamps lie in the device's queue: a late batch counts only as far as the device had nothing else to do.
        def stamped(step: int) -> Iterator[Batch]:
            read = iter(batches(step))
            while True:
                before = self._device.stamp()
                batch = next(read, None)
                if batch is None:
                    return
                self._waits.append((before, self._device.stamp()))
                yield batch

        return stamped
