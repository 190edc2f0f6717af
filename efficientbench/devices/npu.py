"""Huawei Ascend NPUs through torch_npu and HCCL. Run on a simulated device; never on hardware.

torch and torch_npu are those of the image, used as they are. Nothing here imports megatron, and everything happens
before it is imported.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from efficientbench.devices.ascend_chip import INFERENCE, family
from efficientbench.devices.base import Device
from efficientbench.devices.errors import DeviceError

if TYPE_CHECKING:
    import torch

ADAPTORS = {
    "mindspeed": "MindSpeed, which patches megatron-core 0.12.1",
    "mindspeed_llm": "MindSpeed-LLM, which patches megatron-core 0.12.1",
    "megatron_adaptor": "MegatronAdaptor, which patches megatron-core 0.17",
    "transformer_engine_npu": "TransformerEngineNPU, which belongs to megatron-core 0.17",
}
"""Packages that change torch and megatron as they are imported, for another megatron-core than ours."""


def npu_namespace() -> ModuleType:
    """torch_npu's `npu` namespace, which mirrors torch.cuda."""
    namespace: ModuleType = importlib.import_module("torch_npu").npu
    return namespace


class NPU(Device):
    """Ascend NPUs that ASCEND_RT_VISIBLE_DEVICES leaves visible."""

    type = "npu"
    backend = "hccl"
    telemetry = "ascend"
    visibility = "ASCEND_RT_VISIBLE_DEVICES"
    # Context, libraries and communication buffers; assumed, not measured.
    runtime_bytes = 1_500_000_000
    remedy = "an Ascend NPU with its driver, CANN's set_env.sh sourced, and torch-npu in torch's own version"
    environment = {
        # Blocks that grow, so that memory in pieces does not end a run that would fit.
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        # The host prepares operators in two threads: small operators otherwise wait for it.
        "TASK_QUEUE_ENABLE": "2",
        # Each rank's threads stay on the cores that are near its NPU: steadier step times.
        "CPU_AFFINITY_CONF": "1",
        # Nodes that read their data and build their model at different speeds meet within ten minutes, not two.
        "HCCL_CONNECT_TIMEOUT": "600",
        # torch asks what answers for CUDA for its compute capability before it broadcasts, and fails on none. Any will
        # do that has no fp8.
        "TORCH_NPU_DEVICE_CAPABILITY": "8.0",
    }

    def unavailable_reason(self) -> str | None:
        if not glob.glob("/dev/davinci[0-9]*"):
            return "no Ascend driver's device file (/dev/davinci0) on this machine"
        if importlib.util.find_spec("torch_npu") is None:
            return "torch_npu is not installed"
        try:
            namespace = npu_namespace()
        except (ImportError, OSError, RuntimeError) as error:
            return f"torch_npu does not import ({_first_line(error)}); source CANN's set_env.sh first"
        try:
            if not namespace.is_available():
                return "torch_npu finds no usable NPU; npu-smi info tells more"
            name = str(namespace.get_device_name(0))
        except RuntimeError as error:
            return f"the driver refuses torch_npu the NPU ({_first_line(error)}); npu-smi info tells more"
        if family(name) == INFERENCE:
            return f"{name} is made for inference and cannot train"
        return _foreign_adaptor()

    def count(self) -> int:
        return int(npu_namespace().device_count()) if self.unavailable_reason() is None else 0

    def prepare(self, local_rank: int) -> torch.device:
        # A second look: what is imported since would be found by megatron, too.
        reason = _foreign_adaptor()
        if reason is not None:
            raise DeviceError(f"device={self.type} cannot be used here: {reason}")
        # megatron asks for torch.cuda by name: the vendor's own adaptor maps those names, process-wide.
        importlib.import_module("torch_npu.contrib.transfer_to_npu")
        _tell_types_by_cuda_name()
        import torch

        npu_namespace().set_device(local_rank)
        return torch.device(self.type, local_rank)

    def synchronize(self) -> None:
        npu_namespace().synchronize()

    def unsupported_dtypes(self) -> dict[str, str]:
        # Not exchanged for fp16 without a word: runs in different dtypes are not compared.
        if npu_namespace().is_bf16_supported():
            return {}
        name = self.names()[0]
        return {"bf16": f"{name} has no bf16 arithmetic: add training.dtype=fp16, which scales the loss"}

    def memory_capacity_bytes(self) -> int | None:
        return int(npu_namespace().get_device_properties(0).total_memory)

    def allocator(self) -> Any:
        return npu_namespace()

    def names(self) -> list[str]:
        return [str(npu_namespace().get_device_name(index)) for index in range(self.count())]

    def versions(self) -> dict[str, str]:
        found = {"torch-npu": str(importlib.import_module("torch_npu").__version__)}
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


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _foreign_adaptor() -> str | None:
    """Why another project's changes to torch and megatron, found in this process, cannot be trained with; or None."""
    found = next((text for name, text in ADAPTORS.items() if name in sys.modules), None)
    return f"{found}, is already imported: take it out of this environment's start-up" if found else None


def _tell_types_by_cuda_name() -> None:
    """Let `Tensor.type()` say 'torch.cuda.FloatTensor' and its like, which megatron's optimizers compare with."""
    import torch

    tell = torch.Tensor.type
    if getattr(tell, "__module__", None) == __name__:
        return

    def type_by_cuda_name(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        answer = tell(self, *arguments, **options)
        return answer.replace("torch.npu.", "torch.cuda.") if isinstance(answer, str) else answer

    torch.Tensor.type = type_by_cuda_name  # type: ignore[method-assign,assignment]
