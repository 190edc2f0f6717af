"""Reads each accelerator's limits once, and its temperature, clock and throttling every few seconds."""

from __future__ import annotations

import math
from collections import Counter

from efficientbench.metrics.formulas.definitions import Windows
from efficientbench.metrics.formulas.device_use import DeviceConditions, DeviceSettings
from efficientbench.metrics.sensors.base import DeviceState, Sensor


class Conditions:
    """Collects the conditions of one sensor's devices."""

    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor
        self._settings: dict[str, DeviceSettings] = {}
        self._states: dict[str, list[tuple[float, DeviceState]]] = {}

    def begin(self) -> None:
        """Read the devices' settings; call it once the sensor is open."""
        self._settings = self._sensor.settings()

    def look(self, now_s: float) -> None:
        """Read the devices' states at time `now_s`."""
        for uuid, state in self._sensor.states().items():
            self._states.setdefault(uuid, []).append((now_s, state))

    def of(self, uuid: str, windows: Windows) -> DeviceConditions | None:
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
