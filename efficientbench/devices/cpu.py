"""The CPU with gloo: the host is one device, and its ranks share cores and memory."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from efficientbench.devices.base import Device

if TYPE_CHECKING:
    import torch


class CPU(Device):
    """The host. Any number of ranks may share it."""

    type = "cpu"
    backend = "gloo"
    telemetry = "host"
    # Interpreter, torch, the engine and communication.
    runtime_bytes = 372_000_000
    remedy = "nothing is needed"

    def unavailable_reason(self) -> str | None:
        return None

    def count(self) -> int:
        return 1

    def prepare(self, local_rank: int) -> torch.device:
        import torch

        from efficientbench.devices.cuda_stand_in import install

        install()
        return torch.device(self.type)

    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""

    def unsupported_dtypes(self) -> dict[str, str]:
        return {}

    def memory_capacity_bytes(self) -> int | None:
        return None

    def allocator(self) -> None:
        return None

    def names(self) -> list[str]:
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
                models = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
        except OSError:
            models = []
        return [models[0] if models else platform.processor() or platform.machine()]

    def versions(self) -> dict[str, str]:
        return {}
