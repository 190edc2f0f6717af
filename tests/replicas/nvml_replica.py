"""NVML's functions by pynvml's names, answering as its documentation says over made-up GPUs; no GPU took part."""

# ruff: noqa: N802 (the driver's functions keep their names)
from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml

GB = 10**9


@dataclass
class Gpu:
    """A GPU, or one of its MIG slices."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-80GB"
    used: int = 10 * GB
    total: int = 80 * GB
    busy_percent: int = 50
    power_mw: int = 250_000
    energy_mj: int = 7_000_000
    slices: list[Gpu] = field(default_factory=list)
    instance: tuple[int, int] | None = None
    lacks: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    limit_mw: int = 400_000
    clock_mhz: int = 1410
    celsius: int = 60
    reasons: int = 0


class Driver:
    """NVML's functions by pynvml's names, over the given GPUs, with pynvml's own errors."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.initialized = 0
        self.lost = False

    def nvmlInit(self) -> None:
        self.initialized += 1

    def nvmlShutdown(self) -> None:
        self.initialized -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._require(self.initialized > 0, pynvml.NVML_ERROR_UNINITIALIZED)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return gpu.name

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        self._require(gpu.instance is None and "mig" not in gpu.lacks)
        return [int(bool(gpu.slices)), int(bool(gpu.slices))]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, index: int) -> Gpu:
        # Slots are not filled from the first on.
        slots = [None, *gpu.slices]
        self._require(index < len(slots) and slots[index] is not None, pynvml.NVML_ERROR_NOT_FOUND)
        return gpu.slices[index - 1]

    def nvmlDeviceGetGpuInstanceId(self, gpu: Gpu) -> int:
        assert gpu.instance is not None
        return gpu.instance[0]

    def nvmlDeviceGetComputeInstanceId(self, gpu: Gpu) -> int:
        assert gpu.instance is not None
        return gpu.instance[1]

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> SimpleNamespace:
        self._require(not self.lost, pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(used=gpu.used, total=gpu.total, free=gpu.total - gpu.used)

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> SimpleNamespace:
        self._require(gpu.instance is None and "utilization" not in gpu.lacks)
        return SimpleNamespace(gpu=gpu.busy_percent, memory=3)

    def nvmlDeviceGetPowerUsage(self, gpu: Gpu) -> int:
        self._require(gpu.instance is None and "power" not in gpu.lacks)
        return gpu.power_mw

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Gpu) -> int:
        self._require(gpu.instance is None and "energy" not in gpu.lacks)
        return gpu.energy_mj

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.10"

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: Gpu) -> int:
        self._require(gpu.instance is None and "limits" not in gpu.lacks)
        return gpu.limit_mw

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: Gpu) -> int:
        self._require(gpu.instance is None and "limits" not in gpu.lacks)
        return 400_000

    def nvmlDeviceGetMaxClockInfo(self, gpu: Gpu, kind: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1410, pynvml.NVML_CLOCK_MEM: 1593}[kind]

    def nvmlDeviceGetClockInfo(self, gpu: Gpu, kind: int) -> int:
        assert kind == pynvml.NVML_CLOCK_SM
        return gpu.clock_mhz

    def nvmlDeviceGetTemperature(self, gpu: Gpu, sensor: int) -> int:
        self._require("state" not in gpu.lacks)
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return gpu.celsius

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Gpu) -> int:
        return gpu.reasons

    def nvmlDeviceGetEccMode(self, gpu: Gpu) -> list[int]:
        self._require(gpu.instance is None and "limits" not in gpu.lacks)
        return [1, 0]

    def nvmlDeviceGetPersistenceMode(self, gpu: Gpu) -> int:
        return 0

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: Gpu) -> int:
        return 4

    def nvmlDeviceGetNvLinkState(self, gpu: Gpu, link: int) -> int:
        self._require(gpu.instance is None and link < 12)
        return int(link < 8)

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: Gpu) -> int:
        return 16

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:
        self._require("processes" not in gpu.lacks)
        return [SimpleNamespace(pid=pid, usedGpuMemory=GB) for pid in gpu.pids]

    def _require(self, condition: bool, error: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> None:
        if not condition:
            raise pynvml.NVMLError(error)
