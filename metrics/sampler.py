"""Reads one sensor in a thread of its own, at an interval that its own cost stretches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from metrics.definitions import Windows
from metrics.measurement import DeviceMeasurement
from metrics.sensors.base import Counters, Sample, Sensor
from metrics.series import DeviceSeries

MAXIMUM_SHARE_OF_A_CORE = 0.002
"""Sampling may take this much of one core: a tenth of a second of reading buys 50 s of silence."""


class SensorSampler:
    """One sensor's life: opened, sampled at intervals and on demand, closed.

    Whatever the sensor raises ends its series; `failure` then holds the reason, and every call does nothing more.
    A driver's Python binding may raise any type, hence the broad `except` in this one place.
    """

    def __init__(self, sensor: Sensor, interval_s: float, clock: Callable[[], float]) -> None:
        self.sensor = sensor
        self.failure: str | None = None
        self.interval_s = interval_s
        """The interval in use: the one asked for, or longer where a sample costs much."""
        self._asked_interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._series: dict[str, DeviceSeries] = {}
        self._begin_counters: dict[str, Counters] = {}
        self._counters_read_s = 0.0

    def start(self) -> None:
        """Open the sensor, take the first sample (the idle baseline), start the thread."""

        def open_sensor() -> None:
            self.sensor.open()
            for info in self.sensor.devices():
                self._series[info.uuid] = DeviceSeries(info, self.sensor.scope, self.sensor.name)

        self._guarded(open_sensor)
        self.sample()
        if self.failure is None:
            self._thread = threading.Thread(target=self._run, name=f"metrics-{self.sensor.name}", daemon=True)
            self._thread.start()

    def sample(self) -> None:
        """Take one sample of each device now."""
        self._guarded(self._sample)

    def begin_interval(self) -> None:
        """Note the counters at the beginning of a measured interval."""

        def read() -> None:
            self.sensor.reset_peaks()
            self._counters_read_s = self._clock()
            self._begin_counters = self.sensor.counters()

        self._begin_counters = {}
        self._guarded(read)

    def end_interval(self) -> None:
        """Note the counters at the end of a measured interval."""
        counters: dict[str, Counters] = {}
        read_s = self._counters_read_s

        def read() -> None:
            nonlocal read_s
            read_s = self._clock()
            counters.update(self.sensor.counters())

        self._guarded(read)
        for uuid, series in self._series.items():
            series.add_edges(self._begin_counters.get(uuid), counters.get(uuid), read_s - self._counters_read_s)

    def stop(self) -> None:
        """End the thread and close the sensor."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        failure = self.failure
        self.failure = None
        self._guarded(self.sensor.close)
        self.failure = failure or self.failure

    def latest(self) -> list[Sample]:
        """The newest sample of each device."""
        return [series.latest for series in self._series.values() if series.latest is not None]

    def measure(self, windows: Windows) -> list[DeviceMeasurement]:
        """Each device over the windows."""
        with self._lock:
            reasons = dict(getattr(self.sensor, "unavailable", {}))
            return [series.measure(windows, reasons, self.failure) for series in self._series.values()]

    def _run(self) -> None:
        while not self._stop.wait(self.interval_s) and self.failure is None:
            self.sample()

    def _sample(self) -> None:
        begin = time.thread_time()
        for sample in self.sensor.sample(self._clock()):
            self._series[sample.device].add(sample)
        cost_s = time.thread_time() - begin
        self.interval_s = max(self._asked_interval_s, cost_s / MAXIMUM_SHARE_OF_A_CORE)

    def _guarded(self, call: Callable[[], None]) -> None:
        with self._lock:
            if self.failure is not None:
                return
            try:
                call()
            except Exception as error:
                self.failure = f"{self.sensor.name}: {str(error) or type(error).__name__}"
