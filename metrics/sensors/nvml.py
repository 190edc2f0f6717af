"""Reads NVIDIA GPUs through NVML (package nvidia-ml-py, imported when the sensor opens)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.device_use import CLOCKS_SET, HARDWARE, HEAT, DeviceSettings
from efficientbench.metrics.sensors.base import (
    ALLOCATOR_PEAKS,
    MEMORY_AND_UTILIZATION,
    POWER_AND_ENERGY,
    Counters,
    DeviceInfo,
    DeviceState,
    OtherUse,
    Sample,
    Scope,
    Sensor,
)
from efficientbench.metrics.sensors.processes import other_processes
from efficientbench.metrics.sensors.visibility import Handle, find_by_uuid, visible_handles

Value = TypeVar("Value")

_SM, _MEMORY = 1, 2
"""Kinds of clocks (nvmlClockType_t)."""
_MOST_LINKS = 18
"""Largest number of a GPU's NVLinks (NVML_NVLINK_MAX_LINKS)."""
_ON_CHIP = 0
"""The temperature sensor on the chip (nvmlTemperatureSensors_t)."""
_REASONS = {
    0x02: CLOCKS_SET,
    0x04: "the power limit",
    0x08: HARDWARE,
    0x10: "another GPU of its group",
    0x20: HEAT[0],
    0x40: HEAT[1],
    0x80: "the power supply",
}
"""Bit of NVML's clocks event reasons (nvml.h) → its meaning, but for idleness and displays, which slow no training."""


def read_settings(nvml: Any, handle: Any) -> DeviceSettings:
    """Return what limits a GPU's speed and power; a value that the driver does not report, as for a slice, is None."""

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
    # The maximum: the link of an idle GPU falls back to a lower generation.
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
    """Return temperature, clock and what keeps the clock down; None where the driver does not report all of them."""
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


_QUERIES: dict[str, Callable[[Any, Handle], float]] = {
    "memory_used_bytes": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    "utilization": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
    "energy_j": lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
}
"""Field of Sample or Counters → the query of NVML for it, in our units (NVML's are %, mW and mJ)."""


class NvmlSensor(Sensor):
    """Memory, utilization, power and the energy counter of the GPUs that this process uses.

    Memory is the driver's figure for the whole device, with the driver's reservation and other processes. Utilization
    is the share of the driver's last sampling period (1/6 to 1 s) in which a kernel ran. The energy counter (Volta and
    newer) counts since the driver was loaded; its difference is preferred over polled power. Polled power is a mean
    over the last second on GPUs after GA100 (nvmlDeviceGetPowerUsage in NVIDIA's documentation), and lags in short
    windows.

    Args:
        uuids: the devices by UUID, the surest way: `torch.cuda.get_device_properties(i).uuid` as text.
        indices: without `uuids`, positions of the devices among those that CUDA_VISIBLE_DEVICES leaves visible, as
            torch counts them; all visible ones by default.
        environment: the variables, of which CUDA_VISIBLE_DEVICES is read.
        nvml: the module to call; `pynvml` by default.
        pids: the run's processes on this machine, this one by default; any other on a device is a disturbance.
    """

    name = "nvml"
    scope: Scope = "gpu"
    is_slow = False
    figures = MEMORY_AND_UTILIZATION | POWER_AND_ENERGY
    remedy = "a whole GPU instead of a slice, and a driver and container that let NVML answer"

    def __init__(
        self,
        uuids: Sequence[str] | None = None,
        indices: Sequence[int] | None = None,
        environment: Mapping[str, str] = os.environ,
        nvml: Any = None,
        pids: Sequence[int] | None = None,
    ) -> None:
        self.unavailable: dict[str, str] = {}
        self._uuids = uuids
        self._indices = indices
        self._pids = frozenset(pids if pids is not None else [os.getpid()])
        self._lists_processes = True
        self._environment = environment
        self._nvml = nvml
        self._handles: dict[str, Handle] = {}
        self._devices: list[DeviceInfo] = []
        self._initialized = False

    def open(self) -> None:
        """Find the devices and what each can report.

        Raises:
            MetricsError: no nvidia-ml-py, no driver, or no such device; the message says which.
        """
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                raise MetricsError("the package nvidia-ml-py is not installed (pip install nvidia-ml-py)") from None
            self._nvml = pynvml
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise MetricsError(f"no NVIDIA driver answers ({error})") from None
        self._initialized = True
        for handle in self._choose():
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
            capacity = self._nvml.nvmlDeviceGetMemoryInfo(handle).total
            self._handles[uuid] = handle
            self._devices.append(DeviceInfo(uuid, self._nvml.nvmlDeviceGetName(handle), capacity, "driver"))
        self.unavailable = dict.fromkeys(ALLOCATOR_PEAKS, "NVML does not know torch's allocator")
        self.unavailable |= dict.fromkeys(("busy_s", "peak_memory_device_bytes"), "NVML keeps no such register")
        for uuid in self._handles:
            if uuid.startswith("MIG-"):
                # Some drivers return the whole GPU's power for a slice, which two slices would count twice.
                self.unavailable |= dict.fromkeys(("power_w", "energy_j"), f"NVML has none for a MIG slice ({uuid})")
        for quantity in _QUERIES:
            for uuid, handle in self._handles.items():
                try:
                    self._query(quantity, handle)
                except self._nvml.NVMLError as error:
                    # One device is enough to rule the quantity out, since a sum needs every device.
                    self.unavailable[quantity] = f"NVML gives none for {uuid} ({error})"

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices)

    def sample(self, time_s: float) -> list[Sample]:
        return [
            Sample(
                time_s,
                uuid,
                self._query("memory_used_bytes", handle),
                self._query("utilization", handle),
                self._query("power_w", handle),
            )
            for uuid, handle in self._handles.items()
        ]

    def counters(self) -> dict[str, Counters]:
        return {uuid: Counters(energy_j=self._query("energy_j", handle)) for uuid, handle in self._handles.items()}

    def other_use(self) -> dict[str, OtherUse]:
        """Return the processes on each device that do not belong to the run."""
        if not self._lists_processes:
            return {}
        try:
            listed = {uuid: self._nvml.nvmlDeviceGetComputeRunningProcesses(h) for uuid, h in self._handles.items()}
        except self._nvml.NVMLError:
            self._lists_processes = False
            return {}
        found = {}
        for uuid, processes in listed.items():
            others = other_processes([process.pid for process in processes], self._pids)
            if others is not None:
                found[uuid] = others
        return found

    def settings(self) -> dict[str, DeviceSettings]:
        return {uuid: read_settings(self._nvml, handle) for uuid, handle in self._handles.items()}

    def states(self) -> dict[str, DeviceState]:
        found = {uuid: read_state(self._nvml, handle) for uuid, handle in self._handles.items()}
        return {uuid: state for uuid, state in found.items() if state is not None}

    def close(self) -> None:
        if self._initialized:
            self._initialized = False
            self._nvml.nvmlShutdown()

    def _choose(self) -> list[Handle]:
        if self._uuids is not None:
            return [find_by_uuid(self._nvml, uuid) for uuid in self._uuids]
        visible = visible_handles(self._nvml, self._environment)
        listed = self._environment.get("CUDA_VISIBLE_DEVICES")
        if not visible:
            raise MetricsError(f"no GPU is visible to this process (CUDA_VISIBLE_DEVICES={listed})")
        if self._indices is None:
            return visible
        missing = [i for i in self._indices if not 0 <= i < len(visible)]
        if missing:
            raise MetricsError(f"device {missing[0]} is not among the {len(visible)} visible GPUs ({listed=})")
        return [visible[i] for i in self._indices]

    def _query(self, quantity: str, handle: Handle) -> float | None:
        return None if quantity in self.unavailable else _QUERIES[quantity](self._nvml, handle)
