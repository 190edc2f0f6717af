"""Huawei Ascend NPUs through torch_npu and HCCL. Written from the documentation of torch_npu; never run on hardware."""

from __future__ import annotations

import glob
import importlib
import importlib.util
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from efficientbench.devices.base import Device

if TYPE_CHECKING:
    import torch

# Product families without bf16 arithmetic, by the beginning of torch_npu's device name.
NO_BF16 = ("Ascend910A", "Ascend910Pro", "Ascend310")


def torch_npu() -> ModuleType:
    """torch_npu's `npu` namespace, which mirrors torch.cuda."""
    return importlib.import_module("torch_npu").npu


class NPU(Device):
    """Ascend NPUs that ASCEND_RT_VISIBLE_DEVICES leaves visible."""

    type = "npu"
    backend = "hccl"
    telemetry = "ascend"
    visibility = "ASCEND_RT_VISIBLE_DEVICES"
    # Context, libraries and communication buffers; assumed, not measured.
    runtime_bytes = 1_500_000_000
    remedy = "an Ascend NPU with its driver, CANN's set_env.sh sourced, and torch-npu in torch's own version"

    def unavailable_reason(self) -> str | None:
        if not glob.glob("/dev/davinci[0-9]*"):
            return "no Ascend driver's device file (/dev/davinci0) on this machine"
        if importlib.util.find_spec("torch_npu") is None:
            return "torch_npu is not installed"
        try:
            available = torch_npu().is_available()
        except (ImportError, OSError, RuntimeError) as error:
            return f"torch_npu does not import ({error}); source CANN's set_env.sh first"
        return None if available else "torch_npu finds no usable NPU; npu-smi info tells more"

    def count(self) -> int:
        return int(torch_npu().device_count()) if self.unavailable_reason() is None else 0

    def prepare(self, local_rank: int) -> torch.device:
        # megatron asks for torch.cuda by name: the vendor's own adaptor maps those names, process-wide.
        importlib.import_module("torch_npu.contrib.transfer_to_npu")
        import torch

        torch_npu().set_device(local_rank)
        return torch.device(self.type, local_rank)

    def synchronize(self) -> None:
        torch_npu().synchronize()

    def unsupported_dtypes(self) -> dict[str, str]:
        name = self.names()[0]
        return {"bf16": f"{name} has no bf16 arithmetic"} if name.startswith(NO_BF16) else {}

    def memory_capacity_bytes(self) -> int | None:
        return int(torch_npu().get_device_properties(0).total_memory)

    def allocator(self) -> Any:
        return torch_npu()

    def names(self) -> list[str]:
        return [str(torch_npu().get_device_name(index)) for index in range(self.count())]

    def versions(self) -> dict[str, str]:
        found = {"torch-npu": metadata.version("torch-npu")}
        driver = Path("/usr/local/Ascend/driver/version.info")
        for line in driver.read_text(encoding="utf-8").splitlines() if driver.exists() else ():
            if line.startswith("Version="):
                found = {"driver": line.removeprefix("Version="), **found}
        return found

    def backend_unavailable_reason(self) -> str | None:
        # torch knows the backend once the vendor's package is imported.
        if self.unavailable_reason() is not None:
            return "torch-npu, which brings it, cannot be used here"
        return super().backend_unavailable_reason()
