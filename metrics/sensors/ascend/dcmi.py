"""Reads Ascend NPUs through DCMI, the driver's C library. Written from its documentation; never run on an NPU.

Signatures, structures and units: Huawei, "DCMI API Reference" (dcmi_get_device_power_info in 0.1 W,
dcmi_get_device_hbm_info and dcmi_get_device_memory_info_v3 in MB, dcmi_get_device_utilization_rate in %,
dcmi_get_device_die_v2, dcmi_get_device_frequency in MHz, dcmi_get_device_temperature in °C,
dcmi_get_device_ecc_info). What a power reading covers, from the driver's published source (github.com/hicann/driver,
npucli: npu_common_ext.c, npu_info_print.c): on a 910B the chip; on an A3 the card, shown with its first die alone; on
a 310P the card, whose microcontroller has the only reading (dcmi_mcu_get_power_info). The library reports
no cause of a lowered clock and no power limit.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.device_use import DeviceSettings
from efficientbench.metrics.sensors.ascend.dcmi_library import (
    Chip,
    ChipInfo,
    DdrInfo,
    DieId,
    EccInfo,
    HbmInfo,
    Process,
    call,
    card_ids,
    chip_power_w,
    choose_chips,
    load,
)
from efficientbench.metrics.sensors.base import (
    MEMORY_AND_UTILIZATION,
    DeviceInfo,
    DeviceState,
    OtherUse,
    Sample,
    Scope,
    Sensor,
)
from efficientbench.metrics.sensors.host import machine_uuid
from efficientbench.metrics.sensors.processes import other_processes

_CORE_CLOCK, _RATED_CORE_CLOCK = 7, 9
"""Kinds of frequencies (dcmi_freq_type)."""
_ON_CHIP_MEMORY = 2
"""Kind of memory (dcmi_device_type)."""
_HOTTEST_C = 200
"""Highest temperature; larger values are the driver's codes for an unknown one."""
_MAXIMUM_PROCESSES = 32
_AI_CORE = 2
"""The kind of utilization that npu-smi shows as 'AI Core(%)'."""
_COMPUTE_DIE = 1
_BYTES_PER_MB = 1 << 20
_TWO_DIES = re.compile(r"Ascend910(_93\w*)?")
"""Pattern of the names of an A3's chips."""
_NO_POWER = (0x7FFD, 0x7FFF)
"""The microcontroller's codes for a power that is invalid or could not be read."""
_MAXIMUM_POWER_W = 5000.0
"""No Ascend card takes as much."""


class DcmiSensor(Sensor):
    """Memory, AI core utilization and power of Ascend NPUs; energy is integrated power, for lack of a counter.

    Where a card has one power reading for several NPUs (A3, 310P), each gets an equal share of it, and none has a power
    unless all of them are measured. The utilization query takes about 36 ms on a 910B, so that eight chips are read at
    most about three times a second; the record has the interval achieved. While a profiler runs, the driver reports 0.

    Args:
        indices: positions of the devices among the visible ones, as torch counts them; all by default.
        environment: the variables, of which ASCEND_RT_VISIBLE_DEVICES is read.
        library: path of libdcmi.so; the driver's own by default.
        pids: the run's processes on this machine, this one by default; any other on a device is a disturbance.
    """

    name = "dcmi"
    scope: Scope = "npu"
    # Without energy, whose absence is worth no line: no NPU has a counter.
    figures = {**MEMORY_AND_UTILIZATION, "power_w": "power (AEC, J/token)"}

    def __init__(
        self,
        indices: Sequence[int] | None = None,
        environment: Mapping[str, str] = os.environ,
        library: str | None = None,
        pids: Sequence[int] | None = None,
    ) -> None:
        self.unavailable: dict[str, str] = {}
        self._indices = indices
        self._environment = environment
        self._library = library
        self._pids = frozenset(pids if pids is not None else [os.getpid()])
        self._dcmi: Any = None
        self._all: list[Chip] = []
        self._chips: dict[str, Chip] = {}
        self._names: dict[Chip, str] = {}
        self._devices: list[DeviceInfo] = []
        self._unreadable: frozenset[str] = frozenset()

    def open(self) -> None:
        """Load the library, find the chips and what each can report.

        Raises:
            MetricsError: no library, no driver, or no visible chip.
        """
        self._dcmi = load(self._library)
        self._all = self._find_chips()
        for chip in choose_chips(self._all, self._indices, self._environment):
            uuid = self._uuid(chip)
            self._chips[uuid], self._names[chip] = chip, self._name(chip)
            capacity = self._memory_bytes(chip)[1] or None
            self._devices.append(DeviceInfo(uuid, self._names[chip], capacity, "driver"))
        self.unavailable["energy_j"] = "an Ascend NPU has no energy counter: power is polled and integrated"
        self.unavailable["busy_s"] = self.unavailable["peak_memory_device_bytes"] = (
            "an Ascend NPU keeps no such register"
        )
        self.unavailable |= dict.fromkeys(
            ("peak_memory_allocated_bytes", "peak_memory_reserved_bytes"), "the driver does not know torch's allocator"
        )
        for quantity, read in (("utilization", self._percent), ("power_w", self._power_w)):
            for uuid, chip in self._chips.items():
                try:
                    read(chip)
                except MetricsError as error:
                    self.unavailable[quantity] = f"none for {uuid}: {error}"
        self._unreadable = frozenset(self.unavailable)

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices)

    def sample(self, time_s: float) -> list[Sample]:
        samples = []
        for uuid, chip in self._chips.items():
            used, capacity = self._memory_bytes(chip)
            percent = None if "utilization" in self._unreadable else self._percent(chip)
            power_w = None if "power_w" in self._unreadable else self._power_w(chip)
            percent = self._possible("utilization", percent, 100, uuid)
            power_w = self._possible("power_w", power_w, _MAXIMUM_POWER_W, uuid)
            samples.append(
                Sample(
                    time_s,
                    uuid,
                    self._possible("memory_used_bytes", used, capacity or math.inf, uuid),
                    None if percent is None else percent / 100,
                    power_w or None,  # a power of 0 is a missing reading: an idle NPU takes tens of watts
                )
            )
        return samples

    def _possible(self, quantity: str, value: float | None, highest: float, device: str) -> float | None:
        """Return `value` if it lies between 0 and `highest`, in the quantity's own unit, else None.

        The quantity is unavailable, with an impossible value as the reason, until a possible one comes.
        """
        if value is None:
            return None
        # Some drivers return success together with a value that is no percentage, or no power.
        if not 0 <= value <= highest:
            self.unavailable[quantity] = f"the driver's answer for {device} cannot be: {value:g} (at most {highest:g})"
            return None
        self.unavailable.pop(quantity, None)
        return value

    def other_use(self) -> dict[str, OtherUse]:
        """Return the processes on each device that do not belong to the run."""
        found = {}
        for uuid, chip in self._chips.items():
            processes, count = (Process * _MAXIMUM_PROCESSES)(), ctypes.c_int()
            try:
                self._call_for("dcmi_get_device_resource_info", chip, processes, ctypes.byref(count))
            except MetricsError:
                continue
            others = other_processes([process.pid for process in processes[: count.value]], self._pids)
            if others is not None:
                found[uuid] = others
        return found

    def settings(self) -> dict[str, DeviceSettings]:
        found = {uuid: self._settings_of(chip) for uuid, chip in self._chips.items()}
        return {uuid: settings for uuid, settings in found.items() if settings is not None}

    def states(self) -> dict[str, DeviceState]:
        found = {uuid: self._state_of(chip) for uuid, chip in self._chips.items()}
        return {uuid: state for uuid, state in found.items() if state is not None}

    def _settings_of(self, chip: Chip) -> DeviceSettings | None:
        """Return a chip's rated clock and error correction; None where the driver reports neither."""
        try:
            clock_mhz: float | None = self._clock_mhz(chip, _RATED_CORE_CLOCK)
        except MetricsError:
            clock_mhz = None
        try:
            ecc: bool | None = bool(self._fill("dcmi_get_device_ecc_info", chip, EccInfo(), _ON_CHIP_MEMORY).enabled)
        except MetricsError:
            ecc = None
        return None if clock_mhz is None and ecc is None else DeviceSettings(clock_max_mhz=clock_mhz, ecc=ecc)

    def _state_of(self, chip: Chip) -> DeviceState | None:
        """Return temperature and clock; None where the driver does not report both."""
        try:
            temperature_c = self._fill("dcmi_get_device_temperature", chip, ctypes.c_int()).value
            clock_mhz = self._clock_mhz(chip, _CORE_CLOCK)
        except MetricsError:
            return None
        return DeviceState(float(temperature_c), clock_mhz, ()) if temperature_c <= _HOTTEST_C else None

    def _clock_mhz(self, chip: Chip, kind: int) -> float:
        return float(self._fill("dcmi_get_device_frequency", chip, ctypes.c_uint(), kind).value)

    def _find_chips(self) -> list[Chip]:
        chips = []
        for card in card_ids(self._dcmi):
            number, management, processor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
            results = (ctypes.byref(number), ctypes.byref(management), ctypes.byref(processor))
            call(self._dcmi, "dcmi_get_device_id_in_card", card, *results)
            for chip in range(number.value):
                logic_id = ctypes.c_int()
                call(self._dcmi, "dcmi_get_device_logic_id", ctypes.byref(logic_id), card, chip)
                chips.append(Chip(card, chip, logic_id.value))
        return chips

    def _memory_bytes(self, chip: Chip) -> tuple[int, int]:
        """Return (used, capacity) of the on-chip memory, or of the DDR if a chip (310P) has none."""
        try:
            hbm = self._fill("dcmi_get_device_hbm_info", chip, HbmInfo())
            return int(hbm.memory_usage) * _BYTES_PER_MB, int(hbm.memory_size) * _BYTES_PER_MB
        except MetricsError as error:
            try:
                ddr = self._fill("dcmi_get_device_memory_info_v3", chip, DdrInfo())
            except MetricsError:
                raise error from None
        size, available = int(ddr.memory_size), int(ddr.memory_available)
        return (size - available) * _BYTES_PER_MB, size * _BYTES_PER_MB

    def _percent(self, chip: Chip) -> float:
        return float(self._fill("dcmi_get_device_utilization_rate", chip, ctypes.c_uint(), _AI_CORE).value)

    def _power_w(self, chip: Chip) -> float | None:
        dies = [die for die in self._all if die.card == chip.card]
        try:
            if len(dies) == 1 or not _TWO_DIES.fullmatch(self._names[chip]):
                return self._own_power_w(chip)
            card_power_w: float | None = self._own_power_w(dies[0])
        except MetricsError as error:
            try:
                card_power_w = self._controller_power_w(chip.card)
            except MetricsError:
                raise error from None
        return chip_power_w(card_power_w, dies, list(self._chips.values()))

    def _own_power_w(self, chip: Chip) -> float:
        return float(self._fill("dcmi_get_device_power_info", chip, ctypes.c_int()).value / 10)

    def _controller_power_w(self, card: int) -> float | None:
        tenths = ctypes.c_int()
        call(self._dcmi, "dcmi_mcu_get_power_info", card, ctypes.byref(tenths))
        return None if tenths.value in _NO_POWER else tenths.value / 10

    def _name(self, chip: Chip) -> str:
        try:
            info = self._fill("dcmi_get_device_chip_info_v2", chip, ChipInfo())
        except MetricsError:
            return "Ascend NPU"
        kind, name = (text.decode(errors="replace").strip() for text in (info.chip_type, info.chip_name))
        return (name if name.startswith(kind) else kind + name) or "Ascend NPU"

    def _uuid(self, chip: Chip) -> str:
        """Return an identifier from the die's serial number; without one, from the chip's position in this machine."""
        try:
            numbers = self._fill("dcmi_get_device_die_v2", chip, DieId(), _COMPUTE_DIE).soc_die
        except MetricsError:
            numbers = ()
        if any(numbers):
            return "NPU-" + "-".join(f"{number:08x}" for number in numbers)
        return f"NPU-{machine_uuid()}-{chip.card}-{chip.chip}"

    def _fill(self, function: str, chip: Chip, structure: Any, *before: int) -> Any:
        """Return the structure or number that a function of the library fills, behind the arguments `before`."""
        self._call_for(function, chip, *before, ctypes.byref(structure))
        return structure

    def _call_for(self, function: str, chip: Chip, *arguments: Any) -> None:
        call(self._dcmi, function, chip.card, chip.chip, *arguments)
