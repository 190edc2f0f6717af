"""NVIDIA GPUs through torch.cuda and NCCL."""

from __future__ import annotations

import glob
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientbench.devices.base import ONE_QUEUE, Device

if TYPE_CHECKING:
    import torch


class CUDA(Device):
    """NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves visible."""

    type = "cuda"
    backend = "nccl"
    visibility = "CUDA_VISIBLE_DEVICES"
    # On an H200: context 0.64 GB, NCCL's communicators of all ranks 0.58 and of a group 0.41, cuBLAS 0.17.
    runtime_bytes = 1_800_000_000
    draws_weights = True
    triton = True
    zero_overlaps = True
    remedy = "an NVIDIA GPU with its driver, passed into the container if this is one, and a torch built with CUDA"

    def environment(self, tensor_parallel: int) -> dict[str, str]:
        # Growing segments: fragmented memory must not end a run that would fit.
        segments = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        return {**segments, **(ONE_QUEUE if tensor_parallel > 1 else {})}

    def deterministic_environment(self) -> dict[str, tuple[str, ...]]:
        # As in Megatron's own deterministic mode (docs.nvidia.com, Megatron Core, Deterministic Training).
        return {
            "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
            "NCCL_ALGO": ("Ring", "CollnetDirect", "CollnetChain", "^NVLS"),
            "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",),
        }

    def unavailable_reason(self) -> str | None:
        # Look at the device files first: importing torch takes seconds.
        if not glob.glob("/dev/nvidia[0-9]*") and not glob.glob("/dev/dxg"):
            return "no NVIDIA driver's device file (/dev/nvidia0) on this machine"
        import torch

        if torch.version.cuda is None:
            return f"torch {torch.__version__} was built without CUDA"
        if not torch.cuda.is_available():
            return f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no usable GPU; nvidia-smi tells more"
        return None

    def prepare(self, local_rank: int) -> torch.device:
        import torch

        torch.cuda.set_device(local_rank)
        return torch.device(self.type, local_rank)

    def group_device(self, place: torch.device, stages: int) -> torch.device | None:
        # NCCL then connects the ranks as they meet, and not within their first steps; a wrong device is refused there.
        # But such a group has no communicator for each pair: the sends of pipeline stages would wait for each other.
        return place if stages == 1 else None

    def fuses(self) -> bool:
        # Triton compiles the kernels. Every CUDA build of torch for Linux on x86-64 brings it, so a plan on a machine
        # without a GPU assumes that it is there.
        return self.unavailable_reason() is not None or importlib.util.find_spec("triton") is not None

    def unsupported_dtypes(self) -> dict[str, str]:
        import torch

        if torch.cuda.get_device_capability()[0] >= 8:
            return {}
        name = torch.cuda.get_device_name()
        return {"bf16": f"{name} has no bf16 arithmetic (it came with compute capability 8.0)"}

    def allocator(self) -> Any:
        import torch

        return torch.cuda

    def versions(self) -> dict[str, str]:
        import torch

        found = {"CUDA": str(torch.version.cuda)}
        driver = Path("/proc/driver/nvidia/version")
        if driver.exists() and (version := re.search(r" (\d+\.[\d.]+) ", driver.read_text(encoding="utf-8"))):
            found = {"driver": version[1], **found}
        if self.backend_unavailable_reason() is None:
            found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        return found
