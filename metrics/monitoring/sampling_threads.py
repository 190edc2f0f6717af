"""Samples sensors in threads, at intervals that stretch with their cost."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from efficientbench.metrics.monitoring.sampler import PATIENCE_S, SensorSampler

MAXIMUM_SHARE_OF_A_CORE = 0.004
"""The threads of all sensors together may take this much of one core: after a reading of 0.1 s they rest for 25 s."""

NEWEST_WEIGHT = 0.05
"""Weight of the newest round in the mean cost of a round.

Small, so that one expensive round, such as a search for other processes, stretches the interval by little.
"""


class SamplingThread:
    """Samples its sensors together, in rounds, until stopped.

    Args:
        samplers: the sensors' samplers, open when `start` is called.
        interval_s: time between rounds; stretched if a round costs much.
        share_of_a_core: the mean share of one core that the thread may take.
    """

    def __init__(self, samplers: Sequence[SensorSampler], interval_s: float, share_of_a_core: float) -> None:
        self.interval_s = self._asked_interval_s = interval_s
        """The interval in use, s."""
        self._share_of_a_core = share_of_a_core
        self._samplers = samplers
        self._reading: tuple[SensorSampler, float] | None = None
        self._round_begin_s = time.monotonic()
        # Locked until the end: a wait is an acquire with a timeout. An Event would make a new lock for each wait.
        self._ended = threading.Lock()
        self._ended.acquire()
        self._thread = self._new_thread()

    def start(self) -> None:
        """Start the rounds."""
        self._thread.start()

    def give_up_hanging(self) -> None:
        """Fail a sensor that has not answered for `PATIENCE_S`, and sample the others in a new thread."""
        reading = self._reading
        if reading is None or time.monotonic() - reading[1] < PATIENCE_S:
            return
        self._reading = None
        reading[0].fail_to_answer(PATIENCE_S)
        self._thread = self._new_thread()
        self._thread.start()

    def stop(self) -> None:
        """Stop the rounds; wait for a driver that hangs no longer than `PATIENCE_S`."""
        self._ended.release()
        self._thread.join(timeout=PATIENCE_S)

    def _new_thread(self) -> threading.Thread:
        name = f"metrics-{'+'.join(sampler.sensor.name for sampler in self._samplers)}"
        return threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        thread = threading.current_thread()
        # Count the thread's total time, not its readings' alone: waking up costs as much as reading.
        spent_s = mean_cost_s = 0.0
        while working := [sampler for sampler in self._samplers if sampler.failure is None]:
            if self._ended.acquire(timeout=self._until_next_s()):
                self._ended.release()
                return
            self._round_begin_s = time.monotonic()
            for sampler in working:
                self._reading = sampler, time.monotonic()
                sampler.sample_in_thread()
                if self._thread is not thread:  # replaced, while the driver did not answer
                    return
            self._reading = None
            before_s, spent_s = spent_s, time.thread_time()
            if before_s:  # skip the first round, which costs more than any other
                cost_s = spent_s - before_s
                mean_cost_s = mean_cost_s + NEWEST_WEIGHT * (cost_s - mean_cost_s) if mean_cost_s else cost_s
            self.interval_s = stretched_s(self._asked_interval_s, mean_cost_s / self._share_of_a_core)

    def _until_next_s(self) -> float:
        """Return the time to the next round that is due."""
        now_s = time.monotonic()
        # A thread that woke a moment early must not wake twice for one round.
        return due_s(max(now_s, self._round_begin_s + self.interval_s / 4), self.interval_s) - now_s


def stretched_s(asked_s: float, needed_s: float) -> float:
    """Return the interval of at least `needed_s`, in tenths of the asked one.

    An interval that followed each round's cost would put each next round at a random place: a fifth more of them.
    """
    return asked_s * max(math.ceil(needed_s / asked_s * 10), 10) / 10


def due_s(after_s: float, interval_s: float) -> float:
    """Return when the next round after a time is due, on the same clock, s.

    All threads of an interval wake together, since they share warm caches. The times between rounds vary by a quarter
    around the interval, and in the long run rounds fall on all parts of it alike: at equal times, something that takes
    as long as an interval, such as a step, would always be seen at the same place.
    """
    number = math.floor(after_s / interval_s) - 1
    while (due := (number + abs(2 * (number * _SLOWLY % 1) - 1)) * interval_s) <= after_s:
        number += 1
    return due


_SLOWLY = (math.sqrt(5) - 1) / 10
"""Share of its way back and forth within the interval by which each sample is further than the one before: irrational,
so that no place comes back."""


def sampling_threads(samplers: Sequence[SensorSampler], interval_s: float) -> list[SamplingThread]:
    """Return one thread for all quick sensors, and one for each slow sensor.

    The quick ones share a thread because waking up costs more than reading; a slow one must not delay other samples.
    """
    prompt = [sampler for sampler in samplers if not sampler.sensor.is_slow]
    groups = [*([prompt] if prompt else []), *([sampler] for sampler in samplers if sampler.sensor.is_slow)]
    share_of_each = MAXIMUM_SHARE_OF_A_CORE / max(len(samplers), 1)
    return [SamplingThread(group, interval_s, share_of_each * len(group)) for group in groups]
