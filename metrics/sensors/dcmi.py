"""Ascend NPUs through DCMI, the driver's C library. Written from its documentation; never run on an NPU.

Signatures, structures and units: Huawei, "DCMI API Reference" (dcmi_get_device_power_info in 0.1 W,
dcmi_get_device_hbm_info in MB, dcmi_get_device_utilization_rate in %, dcmi_get_device_die_v2).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from metrics.errors import MetricsError
from metrics.sensors.ascend import NO_ALLOCATOR, NO_COUNTER, NO_REGISTER, Chip, choose_chips
from metrics.sensors.base import DeviceInfo, Foreign, Sample, Scope, Sensor
from metrics.sensors.host import machine_uuid
from metrics.sensors.processes import foreign_processes

_LIBRARIES = ("libdcmi.so", "/usr/local/Ascend/driver/lib64/driver/libdcmi.so", "/usr/local/dcmi/libdcmi.so")
_MAXIMUM_CARDS, _MAXIMUM_PROCESSES = 64, 32
_AI_CORE = 2
"""Kind of utilization that npu-smi shows as 'AI Core(%)'."""
_COMPUTE_DIE = 1
_BYTES_PER_MB = 1 << 20


class _HbmInfo(ctypes.Structure):
    _fields_ = (
        ("memory_size", ctypes.c_ulonglong),
        ("freq", ctypes.c_uint),
        ("memory_usage", ctypes.c_ulonglong),
        ("temp", ctypes.c_int),
        ("bandwidth_utilization", ctypes.c_uint),
    )


class _ChipInfo(ctypes.Structure):
    _fields_ = (
        ("chip_type", ctypes.c_char * 32),
        ("chip_name", ctypes.c_char * 32),
        ("chip_version", ctypes.c_char * 32),
        ("ai_cores", ctypes.c_uint),
        ("npu_name", ctypes.c_char * 32),
    )


class _DieId(ctypes.Structure):
    _fields_ = (("soc_die", ctypes.c_uint * 5),)


class _Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_int), ("memory_bytes", ctypes.c_ulong))


def find_library() -> str | None:
    """Where the driver's library can be loaded from, or None."""
    for path in _LIBRARIES:
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return path
    return None


class DcmiSensor(Sensor):
    """Memory, AI core utilization and power of Ascend NPUs; energy is power integrated, for there is no counter.

    The utilization query takes about 36 ms on a 910B, so that eight chips are read about three times a second,
    whatever interval is asked for: the achieved one is recorded. While a profiler runs the driver answers 0.

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
        self._chips: dict[str, Chip] = {}
        self._devices: list[DeviceInfo] = []

    def open(self) -> None:
        """Load the library, find the chips and what each can say.

        Raises:
            MetricsError: no library, no driver, or no visible chip.
        """
        path = self._library or find_library()
        if path is None:
            raise MetricsError("the Ascend driver's library libdcmi.so is not installed")
        try:
            self._dcmi = ctypes.CDLL(path)
        except OSError as error:
            raise MetricsError(f"the Ascend driver's library cannot be loaded ({error})") from None
        self._call("dcmi_init")
        for chip in choose_chips(self._find_chips(), self._indices, self._environment):
            uuid = self._uuid(chip)
            self._chips[uuid] = chip
            capacity = int(self._memory(chip).memory_size) * _BYTES_PER_MB or None
            self._devices.append(DeviceInfo(uuid, self._name(chip), capacity, "driver"))
        self.unavailable = {
            "energy_j": NO_COUNTER,
            **dict.fromkeys(("busy_s", "used_bytes"), NO_REGISTER),
            **dict.fromkeys(("allocated_bytes", "reserved_bytes"), NO_ALLOCATOR),
        }
        for quantity, ask in (("utilization", self._utilization), ("power_w", self._power_w)):
            for uuid, chip in self._chips.items():
                try:
                    ask(chip)
                except MetricsError as error:
                    self.unavailable[quantity] = f"none for {uuid}: {error}"

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices)

    def sample(self, time_s: float) -> list[Sample]:
        power = "power_w" not in self.unavailable
        busy = "utilization" not in self.unavailable
        return [
            Sample(
                time_s,
                uuid,
                int(self._memory(chip).memory_usage) * _BYTES_PER_MB,
                self._utilization(chip) if busy else None,
                self._power_w(chip) if power else None,
            )
            for uuid, chip in self._chips.items()
        ]

    def foreign(self) -> dict[str, Foreign]:
        """Processes on the devices that are not the run's."""
        found = {}
        for uuid, chip in self._chips.items():
            processes, count = (_Process * _MAXIMUM_PROCESSES)(), ctypes.c_int()
            try:
                self._ask("dcmi_get_device_resource_info", chip, processes, ctypes.byref(count))
            except MetricsError:
                continue
            others = foreign_processes([process.pid for process in processes[: count.value]], self._pids)
            if others is not None:
                found[uuid] = others
        return found

    def _find_chips(self) -> list[Chip]:
        count, cards = ctypes.c_int(), (ctypes.c_int * _MAXIMUM_CARDS)()
        self._call("dcmi_get_card_list", ctypes.byref(count), cards, _MAXIMUM_CARDS)
        chips = []
        for card in cards[: count.value]:
            number, management, processor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
            rest = (ctypes.byref(number), ctypes.byref(management), ctypes.byref(processor))
            self._call("dcmi_get_device_id_in_card", card, *rest)
            for chip in range(number.value):
                logic_id = ctypes.c_int()
                self._call("dcmi_get_device_logic_id", ctypes.byref(logic_id), card, chip)
                chips.append(Chip(card, chip, logic_id.value))
        return chips

    def _memory(self, chip: Chip) -> _HbmInfo:
        return self._fill("dcmi_get_device_hbm_info", chip, _HbmInfo())

    def _utilization(self, chip: Chip) -> float | None:
        """The busy fraction; None for an answer that is no percentage, such as some drivers give with success."""
        percent = ctypes.c_uint()
        self._ask("dcmi_get_device_utilization_rate", chip, _AI_CORE, ctypes.byref(percent))
        return percent.value / 100 if percent.value <= 100 else None

    def _power_w(self, chip: Chip) -> float | None:
        tenths = ctypes.c_int()
        self._ask("dcmi_get_device_power_info", chip, ctypes.byref(tenths))
        return tenths.value / 10 if tenths.value > 0 else None

    def _name(self, chip: Chip) -> str:
        try:
            info = self._fill("dcmi_get_device_chip_info_v2", chip, _ChipInfo())
        except MetricsError:
            return chip.name
        return f"{info.chip_type.decode(errors='replace')}{info.chip_name.decode(errors='replace')}" or chip.name

    def _uuid(self, chip: Chip) -> str:
        """The die's own number; where the driver gives none, the chip's place in this machine."""
        try:
            numbers = self._fill("dcmi_get_device_die_v2", chip, _DieId(), _COMPUTE_DIE).soc_die
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
        try:
            code = getattr(self._dcmi, function)(*arguments)
        except AttributeError:
            raise MetricsError(f"this driver's libdcmi.so has no {function}") from None
        if code != 0:
            raise MetricsError(f"{function} failed with code {code} (DCMI API Reference, return codes)")
