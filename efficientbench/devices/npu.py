"""Huawei Ascend NPUs through torch_npu and HCCL. Written from the documentation of torch_npu; never run on hardware."""

from __future__ import annotations

import glob
import importlib
import importlib.util
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
    telemetry = "npu_smi"
    # Context, libraries and communication buffers; assumed, not measured.
    runtime_bytes = 1_500_000_000

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
