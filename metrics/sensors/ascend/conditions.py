"""What limits an NPU's speed, and how it fares, as DCMI reports them; never run on an NPU.

Signatures and numbers: Huawei, "DCMI API Reference" (dcmi_get_device_frequency in MHz, dcmi_get_device_temperature in
°C, dcmi_get_device_ecc_info). The library reports no cause of a lowered clock and no power limit.
"""

from __future__ import annotations

import ctypes
from typing import Any

from efficientbench.metrics.device_use import DeviceSettings
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.sensors.ascend.chips import Chip
from efficientbench.metrics.sensors.ascend.dcmi_library import EccInfo, call
from efficientbench.metrics.sensors.base import DeviceState

_CORE_CLOCK, _RATED_CORE_CLOCK = 7, 9
"""Kinds of frequencies (dcmi_freq_type)."""
_ON_CHIP_MEMORY = 2
"""Kind of memory (dcmi_device_type)."""
_HOTTEST_C = 200
"""Above lie the driver's codes for a temperature that is not known."""


def read_settings(dcmi: Any, chip: Chip) -> DeviceSettings | None:
    """Return what limits a chip; None where the driver reports nothing of it."""
    try:
        clock_mhz: float | None = _clock_mhz(dcmi, chip, _RATED_CORE_CLOCK)
    except MetricsError:
        clock_mhz = None
    info = EccInfo()
    try:
        call(dcmi, "dcmi_get_device_ecc_info", chip.card, chip.chip, _ON_CHIP_MEMORY, ctypes.byref(info))
        ecc: bool | None = bool(info.enabled)
    except MetricsError:
        ecc = None
    return None if clock_mhz is None and ecc is None else DeviceSettings(clock_max_mhz=clock_mhz, ecc=ecc)


def read_state(dcmi: Any, chip: Chip) -> DeviceState | None:
    """Return temperature and clock; None where the driver does not report both."""
    temperature_c = ctypes.c_int()
    try:
        call(dcmi, "dcmi_get_device_temperature", chip.card, chip.chip, ctypes.byref(temperature_c))
        clock_mhz = _clock_mhz(dcmi, chip, _CORE_CLOCK)
    except MetricsError:
        return None
    return DeviceState(float(temperature_c.value), clock_mhz, ()) if temperature_c.value <= _HOTTEST_C else None


def _clock_mhz(dcmi: Any, chip: Chip, kind: int) -> float:
    clock_mhz = ctypes.c_uint()
    call(dcmi, "dcmi_get_device_frequency", chip.card, chip.chip, kind, ctypes.byref(clock_mhz))
    return float(clock_mhz.value)
