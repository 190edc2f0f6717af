"""The power of idle devices, before a run builds its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from efficientbench.metrics.sensors.base import Counters, Sensor

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
