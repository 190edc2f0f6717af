"""Samples one sensor, reads its devices' conditions, and ends its series where the sensor fails or hangs."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.definitions import Windows
from efficientbench.metrics.formulas.device_use import DeviceConditions, DeviceSettings
from efficientbench.metrics.monitoring.idle_power import PowerReading, read_power
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement, SensorState
from efficientbench.metrics.monitoring.series import DeviceSeries, Interval
from efficientbench.metrics.sensors.base import (
    QUANTITIES,
    Counters,
    DeviceInfo,
    DeviceState,
    Meter,
    Peaks,
    Sample,
    Sensor,
)

OTHER_USE_INTERVAL_S = 3.0
"""Time between searches for other processes on the device, and between readings of its state."""

COUNTER_INTERVAL_S = 1.0
"""Time between readings of the counters inside a measured interval: a counter takes minutes to wrap around."""

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
        self._settings: dict[str, DeviceSettings] = {}
        self._states: dict[str, list[tuple[float, DeviceState]]] = {}
        self.idle_w: dict[str, float] = {}
        """Device's uuid → its idle power, W; empty if idle power was not measured."""
        self._closed = False

    def open(self) -> None:
        """Open the sensor within `OPENING_PATIENCE_S`, and take the first sample, the idle baseline."""
        self._patiently(self.sensor.open, None, OPENING_PATIENCE_S)
        self._series = self._answered(self._new_series, {})
        self._settings = self._guarded(self.sensor.settings, {})
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
                conditions=self._conditions_of(uuid, windows),
                power_idle_w=self.idle_w.get(uuid),
                source=self._source,
            )
            for uuid, each in found.items()
        ]

    def _conditions_of(self, uuid: str, windows: Windows) -> DeviceConditions | None:
        """Return a device's conditions over the measured windows; the caller sets `rank`. None without settings."""
        if uuid not in self._settings:
            return None
        inside = [
            state
            for time_s, state in self._states.get(uuid, ())
            if any(begin_s <= time_s <= end_s for begin_s, end_s in windows)
        ]
        reasons = Counter(reason for state in inside for reason in state.slowed_by)
        return DeviceConditions(
            rank=0,
            device=uuid,
            settings=self._settings[uuid],
            temperature_c_max=max((state.temperature_c for state in inside), default=None),
            clock_mhz_mean=math.fsum(state.clock_mhz for state in inside) / len(inside) if inside else None,
            slowed_by={reason: count / len(inside) for reason, count in reasons.items()},
        )

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
            if not all(value is None or math.isfinite(value) for value in (each.energy_j, each.busy_s)):
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
        for uuid, state in self.sensor.states().items():
            self._states.setdefault(uuid, []).append((now_s, state))
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
