"""Finds meters beside the devices' own, such as a socket's or a rack's, and says what they counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from efficientbench.basics import plugins
from efficientbench.basics.errors import ConfigError
from efficientbench.metrics.formulas.device_use import MeterUse
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement, RankMeasurement
from efficientbench.metrics.sensors.base import Meter

ENTRY_POINTS = "efficientbench.meters"


def find_meter(name: str) -> Meter:
    """Import and make the meter `package.module:NAME`, or of an entry point's name.

    NAME is a class of `Meter`, or a function that returns one.

    Raises:
        ConfigError: there is no such meter, or its code fails.
    """
    place = plugins.place_of(name, ENTRY_POINTS)
    if place is None:
        raise ConfigError(plugins.unknown("meter", name, (), ENTRY_POINTS, "package.module:NAME"))
    make = plugins.load(f"meter {name}", place, callable, "a class of Meter or a function that returns one")
    try:
        found = make()
    except Exception as error:  # Code of others fails in any way.
        raise ConfigError(f"meter {name}: {place} cannot be made: {type(error).__name__}: {error}") from None
    # Of another scope it would stand in for a device's own sensor.
    if not isinstance(found, Meter) or found.scope != "meter":
        raise ConfigError(f"meter {name}: {place} makes a {type(found).__name__}, not a Meter of {Meter.__module__}")
    return found


def find_meters(names: Iterable[str] | None) -> list[Meter]:
    """Return the meters of these names, each once; none for None. Raises ConfigError as `find_meter`."""
    return [find_meter(name) for name in dict.fromkeys(names or ())]


def meter_uses(ranks: Sequence[RankMeasurement], devices: Iterable[DeviceMeasurement]) -> tuple[MeterUse, ...]:
    """Return what each meter counted, and why a meter that was not found counted nothing.

    Args:
        ranks: the measurements of all ranks.
        devices: their devices, each once.
    """
    uses = [
        MeterUse(
            name=each.info.name,
            source=each.source,
            device=each.info.uuid,
            energy_j=each.energy_j,
            energy_source=each.energy_source,
            power_w=each.aec_w,
            power_idle_w=each.power_idle_w,
            unavailable=each.unavailable.get("energy_j"),
            energy_doubt=each.energy_doubt,
        )
        for each in devices
        if each.scope == "meter"
    ]
    silent = {
        MeterUse(each.name, each.source, None, None, None, None, None, each.failure or f"{each.name}: found no meter")
        for rank in ranks
        for each in rank.sensors
        if each.scope == "meter" and not each.measures
    }
    return (*uses, *sorted(silent, key=lambda use: (use.source, use.unavailable)))
