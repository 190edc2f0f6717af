"""Huawei Ascend NPUs through torch_npu and HCCL. Run on a simulated device; never on hardware.

torch and torch_npu are the image's own, unchanged. Nothing here imports megatron, which must be imported later.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from efficientbench.basics.errors import first_line
from efficientbench.devices.base import ONE_QUEUE, Device, DeviceError

if TYPE_CHECKING:
    import torch

FAMILIES = {
    "A2": r"Ascend910B\d",
    "A3": r"Ascend910_93",
    "950": r"Ascend950|Ascend910_95",
    "310": r"Ascend310",
    # Last, since "Ascend910B" without a number is of the first generation, as 910A, 910ProA and 910PremiumA are.
    "910": r"Ascend910",
}
"""Family → pattern at the start of its products' names in torch_npu (`SocVersion` in torch_npu's NpuVariables.h)."""

INFERENCE = "310"
"""The family that cannot train."""

FUSED = ("A2", "A3")
"""Families for which torch_npu documents its fused kernels."""

ADAPTORS = {
    "mindspeed": "MindSpeed, which patches megatron-core 0.12.1",
    "mindspeed_llm": "MindSpeed-LLM, which patches megatron-core 0.12.1",
    "megatron_adaptor": "MegatronAdaptor, which patches megatron-core 0.17",
    "transformer_engine_npu": "TransformerEngineNPU, which belongs to megatron-core 0.17",
}
"""Packages that change torch and megatron on import, for another megatron-core than ours."""


_ENVIRONMENT = {
    # Growing segments: fragmented memory must not end a run that would fit.
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    # Two host threads prepare operators: with one, small operators wait for the host.
    "TASK_QUEUE_ENABLE": "2",
    # Threads stay on the cores near their rank's NPU, which makes step times steadier.
    "CPU_AFFINITY_CONF": "1",
    # Nodes load data and model at different speeds: let them connect within ten minutes instead of two.
    "HCCL_CONNECT_TIMEOUT": "600",
    # Before a broadcast torch reads the compute capability of its CUDA device, here the NPU, and fails without one.
    # Any value without fp8 will do.
    "TORCH_NPU_DEVICE_CAPABILITY": "8.0",
}

CANN_HOMES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
"""Variables in which CANN's set_env.sh names the folder of the toolkit."""


def family(name: str) -> str | None:
    """Return the family of a product by its name in torch_npu; None for an unknown one."""
    return next((each for each, pattern in FAMILIES.items() if re.match(pattern, name)), None)


def cann_version(home: Path) -> str | None:
    """Return the toolkit's version from the file that its installer leaves, or None."""
    names = (f"{platform.machine()}-linux/ascend_toolkit_install.info", "version.cfg", "compiler/version.info")
    texts = [file.read_text(encoding="utf-8", errors="replace") for name in names if (file := home / name).is_file()]
    match = re.search(r"^(?:version|Version|toolkit_running_version)=\[?([^\s\]]+)", "\n".join(texts), re.MULTILINE)
    return match[1].rpartition(":")[2] if match else None


def npu_namespace() -> ModuleType:
    """Import torch_npu and return its `npu` namespace, which mirrors torch.cuda."""
    return importlib.import_module("torch_npu").npu


class NPU(Device):
    """Ascend NPUs that ASCEND_RT_VISIBLE_DEVICES leaves visible."""

    type = "npu"
    backend = "hccl"
    address_variable = "HCCL_IF_IP"
    visibility = "ASCEND_RT_VISIBLE_DEVICES"
    # Context, libraries and communication buffers; assumed, not measured.
    runtime_bytes = 1_500_000_000
    remedy = "an Ascend NPU with its driver, CANN's set_env.sh sourced, and torch-npu in torch's own version"

    def unavailable_reason(self) -> str | None:
        reason = self.forward_unavailable_reason()
        if reason is None and family(name := str(npu_namespace().get_device_name(0))) == INFERENCE:
            return f"{name} is made for inference and cannot train"
        return reason

    def forward_unavailable_reason(self) -> str | None:
        if not glob.glob("/dev/davinci[0-9]*"):
            return "no Ascend driver's device file (/dev/davinci0) on this machine"
        if importlib.util.find_spec("torch_npu") is None:
            return "torch_npu is not installed"
        try:
            namespace = npu_namespace()
        except (ImportError, OSError, RuntimeError) as error:
            return f"torch_npu does not import ({first_line(error)}); source CANN's set_env.sh first"
        try:
            if not namespace.is_available():
                return "torch_npu finds no usable NPU; npu-smi info tells more"
            namespace.get_device_name(0)
        except RuntimeError as error:
            return f"the driver refuses torch_npu the NPU ({first_line(error)}); npu-smi info tells more"
        return _foreign_adaptor()

    def environment(self, tensor_parallel: int) -> dict[str, str]:
        return {**_ENVIRONMENT, **(ONE_QUEUE if tensor_parallel > 1 else {})}

    def deterministic_environment(self) -> dict[str, tuple[str, ...]]:
        # HCCL's documentation of its variables; MindSpeed's deterministic mode has the second.
        return {"HCCL_DETERMINISTIC": ("true", "strict"), "CLOSE_MATMUL_K_SHIFT": ("1",)}

    def may_differ(self) -> dict[str, str]:
        return {"fused kernels": "torch_npu does not say whether its own kernels compute the same bits again"}

    def prepare(self, local_rank: int) -> torch.device:
        # Again, since another import may have brought an adaptor after `unavailable_reason`.
        reason = _foreign_adaptor()
        if reason is not None:
            raise DeviceError(f"device={self.type} cannot be used here: {reason}")
        # megatron calls torch.cuda by name; the vendor's adaptor maps those names to the NPU for the whole process.
        importlib.import_module("torch_npu.contrib.transfer_to_npu")
        _rename_tensor_types()
        import torch

        npu_namespace().set_device(local_rank)
        return torch.device(self.type, local_rank)

    def unsupported_dtypes(self) -> dict[str, str]:
        # Refuse bf16 instead of taking fp16 silently: runs in different dtypes must not be compared.
        if npu_namespace().is_bf16_supported():
            return {}
        name = self.names()[0]
        return {"bf16": f"{name} has no bf16 arithmetic: add training.dtype=fp16, which scales the loss"}

    def allocator(self) -> Any:
        return npu_namespace()

    def versions(self) -> dict[str, str]:
        found = {"torch-npu": str(importlib.import_module("torch_npu").__version__)}
        driver = Path("/usr/local/Ascend/driver/version.info")
        for line in driver.read_text(encoding="utf-8").splitlines() if driver.exists() else ():
            if line.startswith("Version="):
                found = {"driver": line.removeprefix("Version="), **found}
        home = next((os.environ[name] for name in CANN_HOMES if os.environ.get(name)), None)
        if home is not None and (version := cann_version(Path(home))):
            found["CANN"] = version
        return found

    def backend_unavailable_reason(self) -> str | None:
        # torch has the backend only once torch_npu is imported, which `unavailable_reason` does.
        if self.unavailable_reason() is not None:
            return "torch-npu, which brings it, cannot be used here"
        return super().backend_unavailable_reason()


def _foreign_adaptor() -> str | None:
    """Return why this process cannot train, where it has imported one of ADAPTORS; else None."""
    found = next((text for name, text in ADAPTORS.items() if name in sys.modules), None)
    return f"{found}, is already imported: take it out of this environment's start-up" if found else None


def _rename_tensor_types() -> None:
    """Let `Tensor.type()` return 'torch.cuda.FloatTensor' and its like, which megatron's optimizers compare with."""
    import torch

    original = torch.Tensor.type
    if getattr(original, "__module__", None) == __name__:
        return

    def type_by_cuda_name(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        found = original(self, *arguments, **options)
        return found.replace("torch.npu.", "torch.cuda.") if isinstance(found, str) else found

    torch.Tensor.type = type_by_cuda_name  # type: ignore[method-assign,assignment]
