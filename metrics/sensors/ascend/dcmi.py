"""Ascend NPUs through DCMI, the driver's C library. Written from its documentation; never run on an NPU.

Signatures, structures and units: Huawei, "DCMI API Reference" (dcmi_get_device_power_info in 0.1 W,
dcmi_get_device_hbm_info and dcmi_get_device_memory_info_v3 in MB, dcmi_get_device_utilization_rate in %,
dcmi_get_device_die_v2). Whose power a reading is, from the driver's published sources (github.com/hicann/driver,
npucli: npu_common_ext.c, npu_info_print.c): that of a 910B is the chip's; of an A3's card only the first die has one
shown; on a 310P the chips have none and the card's microcontroller answers (dcmi_mcu_get_power_info).
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.sensors.ascend.chips import (
    MOST_WATTS,
    NO_ALLOCATOR,
    NO_COUNTER,
    NO_REGISTER,
    Chip,
    Doubt,
    card_power_w,
    choose_chips,
)
from efficientbench.metrics.sensors.ascend.dcmi_library import (
    ChipInfo,
    DdrInfo,
    DieId,
    HbmInfo,
    Process,
    call,
    card_ids,
    load,
)
from efficientbench.metrics.sensors.base import DeviceInfo, Foreign, Sample, Scope, Sensor
from efficientbench.metrics.sensors.host import machine_uuid
from efficientbench.metrics.sensors.processes import foreign_processes

_MAXIMUM_PROCESSES = 32
_AI_CORE = 2
"""Kind of utilization that npu-smi shows as 'AI Core(%)'."""
_COMPUTE_DIE = 1
_BYTES_PER_MB = 1 << 20
_TWO_DIES = re.compile(r"Ascend910(_93\w*)?")
"""Name of an A3's chips."""
_NO_POWER = (0x7FFD, 0x7FFF)
"""The microcontroller's words for a power that is invalid or could not be read."""


class DcmiSensor(Sensor):
    """Memory, AI core utilization and power of Ascend NPUs; energy is power integrated, for there is no counter.

    Where a card gives one power for several NPUs (A3, 310P), each has an equal part of it, and none has any where not
    all of them are measured. The utilization query takes about 36 ms on a 910B, so that eight chips are read about
    three times a second, whatever interval is asked for: the achieved one is recorded. While a profiler runs the
    driver answers 0.

    Args:
        indices: the devices by their place among the visible ones, as torch counts them; all by default.
        environment: where ASCEND_RT_VISIBLE_DEVICES is looked up.
        library: path of libdcmi.so; the driver's own by default.
        pids: the run's processes on this machine, this one by default: any other on a device is a disturbance.
    """

    name = "dcmi"
    scope: Scope = "npu"

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
        self._doubt = Doubt(self.unavailable)

    def open(self) -> None:
        """Load the library, find the chips and what each can say.

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
        self.unavailable.update(
            {
                "energy_j": NO_COUNTER,
                **dict.fromkeys(("busy_s", "used_bytes"), NO_REGISTER),
                **dict.fromkeys(("allocated_bytes", "reserved_bytes"), NO_ALLOCATOR),
            }
        )
        for quantity, ask in (("utilization", self._percent), ("power_w", self._power_w)):
            for uuid, chip in self._chips.items():
                try:
                    ask(chip)
                except MetricsError as error:
                    self.unavailable[quantity] = f"none for {uuid}: {error}"

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices)

    def sample(self, time_s: float) -> list[Sample]:
        samples = []
        for uuid, chip in self._chips.items():
            used, capacity = self._memory_bytes(chip)
            busy = None if self._doubt.rules_out("utilization") else self._percent(chip)
            power = None if self._doubt.rules_out("power_w") else self._power_w(chip)
            busy = self._doubt.checked("utilization", busy, 100, uuid)
            power = self._doubt.checked("power_w", power, MOST_WATTS, uuid)
            samples.append(
                Sample(
                    time_s,
                    uuid,
                    self._doubt.checked("memory_used_bytes", used, capacity or math.inf, uuid),
                    None if busy is None else busy / 100,
                    power or None,  # no NPU runs on nothing
                )
            )
        return samples

    def foreign(self) -> dict[str, Foreign]:
        """Processes on the devices that are not the run's."""
        found = {}
        for uuid, chip in self._chips.items():
            processes, count = (Process * _MAXIMUM_PROCESSES)(), ctypes.c_int()
            try:
                self._ask("dcmi_get_device_resource_info", chip, processes, ctypes.byref(count))
            except MetricsError:
                continue
            others = foreign_processes([process.pid for process in processes[: count.value]], self._pids)
            if others is not None:
                found[uuid] = others
        return found

    def _find_chips(self) -> list[Chip]:
        chips = []
        for card in card_ids(self._dcmi):
            number, management, processor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
            rest = (ctypes.byref(number), ctypes.byref(management), ctypes.byref(processor))
            self._call("dcmi_get_device_id_in_card", card, *rest)
            for chip in range(number.value):
                logic_id = ctypes.c_int()
                self._call("dcmi_get_device_logic_id", ctypes.byref(logic_id), card, chip)
                chips.append(Chip(card, chip, logic_id.value))
        return chips

    def _memory_bytes(self, chip: Chip) -> tuple[int, int]:
        """Used and present: of the on-chip memory, or of the DDR where a chip (310P) has none."""
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
        """As the driver gives it, which some do with success although it is no percentage."""
        percent = ctypes.c_uint()
        self._ask("dcmi_get_device_utilization_rate", chip, _AI_CORE, ctypes.byref(percent))
        return percent.value

    def _power_w(self, chip: Chip) -> float | None:
        dies = [die for die in self._all if die.card == chip.card]
        try:
            if len(dies) == 1 or not _TWO_DIES.fullmatch(self._names[chip]):
                return self._own_power_w(chip)
            power: float | None = self._own_power_w(dies[0])
        except MetricsError as error:
            try:
                power = self._controller_power_w(chip.card)
            except MetricsError:
                raise error from None
        return card_power_w(power, dies, list(self._chips.values()))

    def _own_power_w(self, chip: Chip) -> float:
        tenths = ctypes.c_int()
        self._ask("dcmi_get_device_power_info", chip, ctypes.byref(tenths))
        return tenths.value / 10

    def _controller_power_w(self, card: int) -> float | None:
        tenths = ctypes.c_int()
        self._call("dcmi_mcu_get_power_info", card, ctypes.byref(tenths))
        return None if tenths.value in _NO_POWER else tenths.value / 10

    def _name(self, chip: Chip) -> str:
        try:
            info = self._fill("dcmi_get_device_chip_info_v2", chip, ChipInfo())
        except MetricsError:
            return chip.name
        kind, name = (text.decode(errors="replace").strip() for text in (info.chip_type, info.chip_name))
        return (name if name.startswith(kind) else kind + name) or chip.name

    def _uuid(self, chip: Chip) -> str:
        """The die's own number; where the driver gives none, the chip's place in this machine."""
        try:
            numbers = self._fill("dcmi_get_device_die_v2", chip, DieId(), _COMPUTE_DIE).soc_die
        except MetricsError:
            numbers = ()
        if any(numbers):
            return "NPU-" + "-".join(f"{number:08x}" for number in numbers)
        return f"NPU-{machine_uuid()}-{chip.card}-{chip.chip}"

    def _fill(self, function: str, chip: Chip, structure: Any, *before: int) -> Any:
        self._ask(function, chip, *before, ctypes.byref(structure))
        return structure

    def _ask(self, function: str, chip: Chip, *rest: Any) -> None:
        self._call(function, chip.card, chip.chip, *rest)

    def _call(self, function: str, *arguments: Any) -> None:
        call(self._dcmi, function, *arguments)
