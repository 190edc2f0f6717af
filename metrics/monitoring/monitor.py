"""Measures any training loop in a few lines.

monitor = EfficiencyMonitor(warmup_steps=2)
with monitor:
    for batch in batches:
        with monitor.step(tokens=batch.numel()):
            train(batch)
print(monitor.summary())
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.device_use import MachineConditions
from efficientbench.metrics.monitoring.aggregate import merge
from efficientbench.metrics.monitoring.idle_power import READINGS, idle_power_w
from efficientbench.metrics.monitoring.measurement import RankMeasurement, StepTime, describe
from efficientbench.metrics.monitoring.meters import find_meters
from efficientbench.metrics.monitoring.sampler import SensorSampler
from efficientbench.metrics.monitoring.sampling_threads import SamplingThread, sampling_threads
from efficientbench.metrics.monitoring.sensor_registry import local_sensors, local_synchronize, nothing
from efficientbench.metrics.sensors.base import Sample, Sensor
from efficientbench.metrics.sensors.machine import machine_conditions


class EfficiencyMonitor:
    """Times steps and samples sensors over a window of measured steps alone.

    The window opens by itself at the first step after the warm-up and closes at `finish`. `pause` and `resume` exclude
    evaluation, checkpoints and everything else that is no training step. Call `start` before the model is built, so
    that the first sample is the idle baseline of memory.

    Args:
        sensors: what to sample, in threads. By default `local_sensors()` at the call of `start`: this process's
            accelerator, else the host.
        synchronize: waits until the device has done all its work; called around each step, so that a step's time
            covers its work and not its launch alone. By default torch's for the accelerator; none on a CPU.
        barrier: waits for all ranks; called at the edges of the window only. None for a single rank.
        warmup_steps: the first steps, which run but are not measured. The monitor counts them, so that a loop needs no
            counter of its own.
        sample_interval_s: the interval between samples, stretched where sampling would cost more than 0.4 % of a core.
        rank: this process's rank, for the record.
        clock: a monotonic clock in seconds.
        steps_before: number of steps of the same training before this monitor's first; its numbering continues theirs.
        waited: returns the seconds that the device has waited for other ranks since the last call: within the rank's
            pipeline stage, and for other stages (None for a single stage). The monitor calls it when the device has
            done all its work. None: not measured.
        meters: meters to read beside the sensors, as `package.module:NAME` or an entry point's name. Ranks that read
            the same meter count it once.
        idle_s: seconds that `start` waits to measure idle power, if a sensor reads power; 0: it is not measured.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor] | None = None,
        synchronize: Callable[[], object] | None = None,
        barrier: Callable[[], object] | None = None,
        *,
        warmup_steps: int = 0,
        sample_interval_s: float = 0.1,
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
        steps_before: int = 0,
        waited: Callable[[], tuple[float, float | None]] | None = None,
        meters: Sequence[str] = (),
        idle_s: float = 0.0,
    ) -> None:
        if warmup_steps < 0 or sample_interval_s <= 0:
            raise MetricsError(
                f"warmup_steps ({warmup_steps}) must be 0 or more and sample_interval_s ({sample_interval_s}) above 0"
            )
        self._sensors = sensors
        self._meters = meters
        self._samplers: list[SensorSampler] = []
        self._threads: list[SamplingThread] = []
        self._sample_interval_s = sample_interval_s
        self._synchronize = synchronize
        self._wait_for_device: Callable[[], object] = nothing
        self._wait_for_ranks = barrier or nothing
        self._warmup_steps = warmup_steps
        self._rank = rank
        self._clock = clock
        self._state = "new"
        self._paused = False
        self._windows: list[tuple[float, float]] = []
        self._window_begin_s: float | None = None
        self._step_begin_s: float | None = None
        self._steps_before = steps_before
        self._waited: Callable[[], tuple[float, float | None] | None] = waited or nothing
        self._steps_run = 0
        self._steps: list[StepTime] = []
        self._measurement: RankMeasurement | None = None
        self._machine: MachineConditions | None = None
        self._idle_s = idle_s

    def start(self) -> None:
        """Open the sensors, take the idle baseline, start sampling. Raises ConfigError: there is no such meter."""
        if self._state != "new":
            raise MetricsError("a monitor is started once: make a new one for a new measurement")
        self._state = "started"
        try:
            self._machine = machine_conditions(self._rank)
            self._start_sampling()
            self._measure_idle()
        except BaseException:
            self.close()
            raise

    def begin_step(self) -> None:
        """Begin a training step; the first measured one opens the window."""
        self._require_started()
        if self._step_begin_s is not None:
            raise MetricsError("begin_step was called twice without end_step between")
        if self._paused:
            raise MetricsError("begin_step was called while paused: call resume first")
        if self._window_begin_s is None and self._steps_run >= self._warmup_steps:
            self._open_window()
        self._wait_for_device()
        self._waited()
        self._step_begin_s = self._clock()

    def end_step(self, tokens: int) -> float:
        """End the training step.

        Args:
            tokens: tokens trained on in this step that no other rank counts. Merging sums over ranks: among ranks that
                share a batch (tensor, pipeline or context parallel) one passes the number and the others 0.

        Returns:
            The step's synchronized wall time on this rank, s.

        Raises MetricsError: no step was begun, or `tokens` is no integer.
        """
        if self._step_begin_s is None:
            raise MetricsError("end_step was called without begin_step")
        try:
            # This converts NumPy's and torch's integers, which no record can hold.
            tokens = operator.index(tokens)
        except TypeError:
            raise MetricsError(f"end_step: tokens: a whole number is needed, it is: {tokens!r:.60}") from None
        if tokens < 0:
            raise MetricsError(f"end_step: tokens: 0 or more are needed, it is: {tokens}")
        self._wait_for_device()
        begin_s, self._step_begin_s = self._step_begin_s, None
        step_time_s, waited_s = self._clock() - begin_s, self._waited()
        for thread in self._threads:
            thread.give_up_hanging()
        self._steps_run += 1
        if self._window_begin_s is not None:
            self._steps.append(StepTime(self._steps_before + self._steps_run, step_time_s, tokens, begin_s, waited_s))
        return step_time_s

    @contextmanager
    def step(self, tokens: int) -> Iterator[None]:
        """Time the body of `with monitor.step(tokens): …` as one step; a body that raises is no step."""
        self.begin_step()
        try:
            yield
        except BaseException:
            self._step_begin_s = None
            raise
        self.end_step(tokens)

    def drop_step(self) -> None:
        """Drop a step that was begun and will not end; the window closes where the step began."""
        if self._step_begin_s is not None:
            self._close_window(self._step_begin_s)
            self._step_begin_s = None

    def pause(self) -> None:
        """Close the window until `resume` and the next step."""
        self._require_started()
        if self._step_begin_s is not None:
            raise MetricsError("pause was called inside a step: call end_step first")
        self._close_window()
        self._paused = True

    def resume(self) -> None:
        """Let the next step open the window again."""
        self._require_started()
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the body of `with monitor.paused(): evaluate()` out of the window."""
        self.pause()
        yield
        self.resume()

    def latest_samples(self) -> list[Sample]:
        """Return the newest sample of each device, for a progress display."""
        return [sample for sampler in self._samplers for sample in sampler.latest()]

    def closed_windows(self) -> int:
        """Return the number of measured intervals that pauses have ended so far."""
        return len(self._windows)

    def measured_tokens(self) -> int:
        """Return the tokens of the measured steps so far that this rank counts."""
        return sum(step.tokens for step in self._steps)

    def finish(self) -> RankMeasurement:
        """Close the window, stop sampling, and return what was measured. Further calls return the same."""
        if self._measurement is None:
            self._require_started()
            self._step_begin_s = None
            try:
                self._close_window()
            finally:
                self.close()
            self._measurement = self._measured()
        return self._measurement

    def abandon(self) -> None:
        """Stop sampling after an error, without waiting for device or ranks; `finish` returns the steps until then."""
        measured = self._state == "started" and bool(self._steps)
        if measured and self._window_begin_s is not None and self._steps[-1].begin_s >= self._window_begin_s:
            self._end_window(self._steps[-1].begin_s + self._steps[-1].time_s)
        self.close()
        if measured:
            self._measurement = self._measured()

    def _measured(self) -> RankMeasurement:
        windows = tuple(self._windows)
        return RankMeasurement(
            rank=self._rank,
            windows=windows,
            steps=tuple(self._steps),
            devices=tuple(device for sampler in self._samplers for device in sampler.measure(windows)),
            sensors=tuple(sampler.state() for sampler in self._samplers),
            machine=self._machine,
        )

    def summary(self) -> str:
        """Return what this rank alone measured, in a few lines of text; `merge` joins several ranks."""
        return describe(merge([self.finish()]))

    def close(self) -> None:
        """Stop sampling without measuring and without waiting for other ranks, as after an error."""
        if self._state == "started":
            self._state = "closed"
            for thread in self._threads:
                thread.stop()
            for sampler in self._samplers:
                sampler.close()

    def __enter__(self) -> EfficiencyMonitor:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()

    def _start_sampling(self) -> None:
        sensors = local_sensors() if self._sensors is None else self._sensors
        self._wait_for_device = self._synchronize or local_synchronize()
        self._samplers = [SensorSampler(sensor, self._clock) for sensor in (*sensors, *find_meters(self._meters))]
        for sampler in self._samplers:
            sampler.open()
        for thread in sampling_threads(self._samplers, self._sample_interval_s):
            thread.start()
            self._threads.append(thread)

    def _measure_idle(self) -> None:
        if self._idle_s == 0:
            return
        taken = [[sampler.read_power()] for sampler in self._samplers]
        if not any(readings[0] for readings in taken):
            return
        for _ in range(READINGS):
            time.sleep(self._idle_s / READINGS)
            for readings, sampler in zip(taken, self._samplers, strict=True):
                readings.append(sampler.read_power())
        for readings, sampler in zip(taken, self._samplers, strict=True):
            sampler.idle_w = idle_power_w(readings)

    def _open_window(self) -> None:
        # One sample before this edge and one after the other bracket the window, so that the integral has a value at
        # both ends, however rare samples are. Counters are read last, once the device and the ranks have settled.
        for sampler in self._samplers:
            sampler.sample()
        # Meters may answer slowly, and would make the other ranks wait in their first step. Growth is scaled anyway.
        for sampler in self._samplers:
            if sampler.is_meter:
                sampler.begin_interval()
        self._wait_for_device()
        self._wait_for_ranks()
        for sampler in self._samplers:
            if not sampler.is_meter:
                sampler.begin_interval()
        self._window_begin_s = self._clock()

    def _close_window(self, end_s: float | None = None) -> None:
        """Close the window at `end_s`; None: now."""
        if self._window_begin_s is None:
            return
        self._wait_for_device()
        self._wait_for_ranks()
        self._end_window(self._clock() if end_s is None else end_s)

    def _end_window(self, end_s: float) -> None:
        assert self._window_begin_s is not None
        self._windows.append((self._window_begin_s, end_s))
        self._window_begin_s = None
        for sampler in self._samplers:
            sampler.end_interval()
        for sampler in self._samplers:
            sampler.sample()

    def _require_started(self) -> None:
        if self._state != "started":
            raise MetricsError(f"the monitor is {self._state}: call start before the first step, and finish last")
