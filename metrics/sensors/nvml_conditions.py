"""The limits of a GPU, and the reasons that keep its clock down, as NVML reports them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from efficientbench.metrics.device_use import CLOCKS_SET, HARDWARE, HEAT, DeviceSettings
from efficientbench.metrics.sensors.base import DeviceState

Value = TypeVar("Value")

_SM, _MEMORY = 1, 2
"""Kinds of clocks (nvmlClockType_t)."""
_MOST_LINKS = 18
"""Of NVLink (NVML_NVLINK_MAX_LINKS)."""
_ON_CHIP = 0
"""The sensor of temperature (nvmlTemperatureSensors_t)."""
_REASONS = {
    0x02: CLOCKS_SET,
    0x04: "the power limit",
    0x08: HARDWARE,
    0x10: "another GPU of its group",
    0x20: HEAT[0],
    0x40: HEAT[1],
    0x80: "the power supply",
}
"""Bit of NVML's clocks event reasons (nvml.h) → what it means. Idleness and displays slow no training."""


def read_settings(nvml: Any, handle: Any) -> DeviceSettings:
    """Return what limits a GPU's speed and power; what its driver does not report, as of a MIG slice, is None."""

    def asked(query: Callable[[], Value]) -> Value | None:
        try:
            return query()
        except nvml.NVMLError:
            return None

    limit_mw = asked(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    default_mw = asked(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    links = [asked(partial(nvml.nvmlDeviceGetNvLinkState, handle, link)) for link in range(_MOST_LINKS)]
    up = [state for state in links if state is not None]
    lanes = asked(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    # The greatest one: the link of an idle GPU falls back to a lower generation.
    generation = asked(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    return DeviceSettings(
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        power_limit_default_w=None if default_mw is None else default_mw / 1e3,
        clock_max_mhz=_float(asked(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _SM))),
        memory_clock_max_mhz=_float(asked(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _MEMORY))),
        ecc=asked(lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        persistence=asked(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        pcie=None if generation is None or lanes is None else f"generation {generation}, {lanes} lanes",
        driver=asked(lambda: str(nvml.nvmlSystemGetDriverVersion())),
        nvlinks=sum(up) if up else None,
    )


def read_state(nvml: Any, handle: Any) -> DeviceState | None:
    """Return temperature, clock and what keeps it down; None where the driver does not report all of them."""
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return DeviceState(
            temperature_c=float(nvml.nvmlDeviceGetTemperature(handle, _ON_CHIP)),
            clock_mhz=float(nvml.nvmlDeviceGetClockInfo(handle, _SM)),
            slowed_by=tuple(meaning for bit, meaning in _REASONS.items() if reasons & bit),
        )
    except nvml.NVMLError:
        return None


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)
