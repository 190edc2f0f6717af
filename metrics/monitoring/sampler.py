"""Samples sensors in threads, at intervals that stretch with their cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean
from typing import NamedTuple, TypeVar

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.definitions import Windows
from efficientbench.metrics.monitoring.conditions import Conditions
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement, SensorState
from efficientbench.metrics.monitoring.series import DeviceSeries, Interval
from efficientbench.metrics.sensors.base import QUANTITIES, Counters, DeviceInfo, Meter, Peaks, Sample, Sensor

READINGS = 10
"""Readings of idle power, after the first, in the time that a monitor waits for them."""
NOT_READ = "nobody waited before the run to read it"
"""Why there is no idle power where a monitor was not asked to wait, or no sensor reads power."""


class PowerReading(NamedTuple):
    """Energy and power of one device at one moment. None: its sensor does not read the quantity."""

    time_s: float
    energy_j: float | None
    """Reading of the energy counter, which only grows."""
    power_w: float | None


def read_power(sensor: Sensor, now_s: float) -> dict[str, PowerReading]:
    """Return power and energy of each device of an open sensor, by uuid; empty if the sensor reads neither."""
    if {"power_w", "energy_j"} <= set(sensor.unavailable):
        return {}
    counters, samples = sensor.counters(), sensor.sample(now_s)
    energies = {each.device: counters.get(each.device, Counters()).energy_j for each in samples}
    return {each.device: PowerReading(now_s, energies[each.device], each.power_w) for each in samples}


def idle_power_w(readings: Sequence[Mapping[str, PowerReading]]) -> dict[str, float]:
    """Return each device's mean power, W: from its counter where that has grown, else from its readings of power."""
    found = {}
    for uuid in {uuid: None for each in readings for uuid in each}:
        own = [each[uuid] for each in readings if uuid in each]
        first, last = own[0], own[-1]
        powers = [each.power_w for each in own if each.power_w is not None]
        if first.energy_j is not None and last.energy_j is not None and last.energy_j > first.energy_j:
            found[uuid] = (last.energy_j - first.energy_j) / (last.time_s - first.time_s)
        elif powers:
            found[uuid] = fmean(powers)
    return found


MAXIMUM_SHARE_OF_A_CORE = 0.004
"""The threads of all sensors together may take this much of one core: after a reading of 0.1 s they rest for 25 s."""

OTHER_USE_INTERVAL_S = 3.0
"""Time between searches for other processes on the device, and between readings of its state."""

COUNTER_INTERVAL_S = 1.0
"""Time between readings of the counters inside a measured interval: a counter takes minutes to wrap around."""

NEWEST_WEIGHT = 0.05
"""Weight of the newest round in the mean cost of a round.

Small, so that one expensive round, such as a search for other processes, stretches the interval by little.
"""

BATCH = 64
"""Samples of this many rounds are stored together: storing every round, with cold caches, costs several times more."""

PATIENCE_S = 10.0
"""A sensor that does not answer within this time has failed: a driver may hang, but the training must not."""

OPENING_PATIENCE_S = 60.0
"""The patience for opening a sensor: a driver without persistence mode starts all of its devices first."""

Result = TypeVar("Result")

_UNREAD: tuple[dict[str, Counters], float] = ({}, 0.0)
"""Counters and their time, for a sensor that could not be read."""


class SensorSampler:
    """Opens a sensor, samples it at intervals and on demand, and closes it.

    Any exception of the sensor ends its series: `failure` then has the reason, and all further calls do nothing. A
    driver's Python binding may raise any type and return any value, hence the broad `except`.
    """

    def __init__(self, sensor: Sensor, clock: Callable[[], float]) -> None:
        self.failure: str | None = None
        """Why the series ended early; None: it did not."""
        self.sensor = sensor
        """The sensor to read."""
        self.is_meter = isinstance(sensor, Meter)
        """Whether the sensor is a meter beside the devices' own, which comes from outside this project."""
        self._clock = clock
        self._source = sensor.source if isinstance(sensor, Meter) else ""
        self._lock = threading.Lock()
        self._series: dict[str, DeviceSeries] = {}
        self._newest: list[Sample] = []
        self._pending: list[Sample] = []
        self._begin = _UNREAD
        self._searched_s: float | None = None
        self._next_search_s = self._next_watch_s = 0.0
        self._first_s = self._last_s = 0.0
        self._samples = 0
        self._conditions = Conditions(sensor)
        self.idle_w: dict[str, float] = {}
        """Device's uuid → its idle power, W; empty if idle power was not measured."""
        self._closed = False

    def open(self) -> None:
        """Open the sensor within `OPENING_PATIENCE_S`, and take the first sample, the idle baseline."""
        self._patiently(self.sensor.open, None, OPENING_PATIENCE_S)
        self._series = self._answered(self._new_series, {})
        self._guarded(self._conditions.begin, None)
        self.sample()

    def sample(self) -> None:
        """Take one sample of each device now."""
        self._answered(self._sample, None)

    def sample_in_thread(self) -> None:
        """Take one sample of each device, in a thread that may hang."""
        self._guarded(self._sample, None)

    def begin_interval(self) -> None:
        """Read the counters at the beginning of a measured interval, and restart the peaks."""
        self._answered(self.sensor.reset_peaks, None)
        self._begin = self._answered(self._read_counters, _UNREAD)

    def end_interval(self) -> None:
        """Read the counters and peaks at the end of a measured interval."""
        begin_counters, begin_s = self._begin
        counters, read_s = self._answered(self._read_counters, _UNREAD)
        peaks: dict[str, Peaks] = self._answered(self.sensor.peaks, {})
        for uuid, series in self._series.items():
            begin, end = begin_counters.get(uuid, Counters()), counters.get(uuid, Counters())
            series.intervals.append(Interval(begin, end, read_s - begin_s, peaks.get(uuid, Peaks())))

    def read_power(self) -> dict[str, PowerReading]:
        """Return power and energy of each device now, by uuid; empty if the sensor reads neither."""
        return self._answered(lambda: read_power(self.sensor, self._clock()), {})

    def fail_to_answer(self, patience_s: float) -> None:
        """End the series of a sensor that hangs."""
        self._fail(f"the driver has not answered for {patience_s:g} s")

    def close(self) -> None:
        """Close the sensor, also one that has failed."""
        self._closed = True
        failure, self.failure = self.failure, None
        self._answered(self.sensor.close, None)
        self.failure = failure or self.failure

    def latest(self) -> list[Sample]:
        """Return the newest sample of each device that answers; none once the sensor has failed."""
        return self._newest if self.failure is None else []

    def state(self) -> SensorState:
        """Return what the sensor measured, and why not the rest."""
        unavailable = dict(self.sensor.unavailable)
        opened = bool(self._series)
        return SensorState(
            self.sensor.name,
            self.sensor.scope,
            self.failure,
            measures=tuple(name for name in QUANTITIES if name not in unavailable) if opened else (),
            unavailable=unavailable,
            sample_interval_s=(self._last_s - self._first_s) / (self._samples - 1) if self._samples > 1 else None,
            source=self._source,
        )

    def measure(self, windows: Windows) -> list[DeviceMeasurement]:
        """Return each device's measurement over the windows; call it after `close`."""
        self._store()
        found = {uuid: s.measure(windows, self.sensor.unavailable, self.failure) for uuid, s in self._series.items()}
        return [
            replace(
                each,
                conditions=self._conditions.of(uuid, windows),
                power_idle_w=self.idle_w.get(uuid),
                source=self._source,
            )
            for uuid, each in found.items()
        ]

    def _new_series(self) -> dict[str, DeviceSeries]:
        infos = self.sensor.devices()
        for info in infos:
            if not isinstance(info, DeviceInfo) or not isinstance(info.uuid, str) or not isinstance(info.name, str):
                raise MetricsError(f"named {info!r:.100}, which is no device")
        return {info.uuid: DeviceSeries(info, self.sensor.scope) for info in infos}

    def _sample(self) -> None:
        if self._closed:  # by the main thread, while another sensor blocked this one
            return
        now_s = self._clock()
        newest = self.sensor.sample(now_s)
        if self._closed or self.failure is not None:  # the driver answered after all, but too late
            return
        self._pending += newest
        self._newest = newest
        if not self._samples:
            self._first_s = self._next_search_s = now_s
            self._next_watch_s = now_s + COUNTER_INTERVAL_S
        self._last_s = now_s
        self._samples += 1
        if self._samples % BATCH == 0:
            self._store()
        if now_s >= self._next_watch_s and self.sensor.counters_are_watched:
            self._watch_counters(now_s)
        if now_s >= self._next_search_s:
            self._find_other_use(now_s)

    def _read_counters(self) -> tuple[dict[str, Counters], float]:
        counters = self.sensor.counters()
        for uuid, each in counters.items():
            if not all(value is None or isfinite(value) for value in (each.energy_j, each.busy_s)):
                raise MetricsError(f"counted {each} on {uuid}, which is not finite")
        return counters, self._clock()

    def _store(self) -> None:
        pending, self._pending = self._pending, []
        for sample in pending:
            try:
                self._series[sample.device].add(sample)
            except KeyError:
                self._fail(f"sampled {sample.device}, which it had not named")
            except Exception as error:
                self._fail(f"gave {sample}, which is no sample ({error})")

    def _watch_counters(self, now_s: float) -> None:
        for uuid, counters in self.sensor.counters().items():
            self._series[uuid].watch(now_s, counters)
        self._next_watch_s = now_s + COUNTER_INTERVAL_S

    def _find_other_use(self, now_s: float) -> None:
        # The first search cannot know how long others have been there: their time counts from now.
        begin_s = now_s if self._searched_s is None else self._searched_s
        for uuid, use in self.sensor.other_use().items():
            self._series[uuid].add_other_use(begin_s, now_s, use)
        self._conditions.look(now_s)
        self._searched_s = now_s
        self._next_search_s = now_s + OTHER_USE_INTERVAL_S

    def _answered(self, call: Callable[[], Result], otherwise: Result) -> Result:
        """Return the result of a call by the training's own thread, which a meter from outside must not hold up."""
        return self._patiently(call, otherwise, PATIENCE_S) if self.is_meter else self._guarded(call, otherwise)

    def _patiently(self, call: Callable[[], Result], otherwise: Result, patience_s: float) -> Result:
        """Return the result of a call in a thread of its own; end the series of a sensor that hangs."""
        found = [otherwise]

        def ask() -> None:
            found[0] = self._guarded(call, otherwise)

        asking = threading.Thread(target=ask, name=f"ask-{self.sensor.name}", daemon=True)
        asking.start()
        asking.join(patience_s)
        if asking.is_alive():
            self.fail_to_answer(patience_s)
        return found[0]

    def _guarded(self, call: Callable[[], Result], otherwise: Result) -> Result:
        """Return the result of a call to the sensor, or `otherwise` where the sensor has failed or fails at it."""
        if self.failure is not None:
            return otherwise
        if not self._lock.acquire(timeout=PATIENCE_S):
            self.fail_to_answer(PATIENCE_S)
            return otherwise
        try:
            return call()
        except Exception as error:
            self._fail(str(error) or type(error).__name__)
            return otherwise
        finally:
            self._lock.release()

    def _fail(self, reason: str) -> None:
        """Record why the sensor failed; the first reason stays."""
        self.failure = self.failure or f"{self.sensor.name}: {reason}"


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
            self.interval_s = max(self._asked_interval_s, mean_cost_s / self._share_of_a_core)

    def _until_next_s(self) -> float:
        """Return the time to the next multiple of the interval: threads that wake together share warm caches."""
        now_s = time.monotonic()
        # From the nearest multiple, not the last: a thread that woke a moment early must not wake twice for one.
        due_s = (round(self._round_begin_s / self.interval_s) + 1) * self.interval_s
        return due_s - now_s if due_s > now_s else self.interval_s - now_s % self.interval_s


def sampling_threads(samplers: Sequence[SensorSampler], interval_s: float) -> list[SamplingThread]:
    """Return one thread for all quick sensors, and one for each slow sensor.

    The quick ones share a thread because waking up costs more than reading; a slow one must not delay other samples.
    """
    prompt = [sampler for sampler in samplers if not sampler.sensor.is_slow]
    groups = [*([prompt] if prompt else []), *([sampler] for sampler in samplers if sampler.sensor.is_slow)]
    share_of_each = MAXIMUM_SHARE_OF_A_CORE / max(len(samplers), 1)
    return [SamplingThread(group, interval_s, share_of_each * len(group)) for group in groups]
