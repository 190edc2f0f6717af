"""The collective backend `hccl`: gloo, with the refusals of the real one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

REDUCED_DTYPES = {torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.bfloat16}
"""Dtypes that the real ProcessGroupHCCL reduces (`checkSupportedDataTypeOfAllReduce` in its source)."""


def register() -> None:
    """Make `hccl` known to torch.distributed."""

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)

    # The CPU too, since gloo gets the wrapped tensors.
    dist.Backend.register_backend("hccl", create, devices=["npu", "cpu"])
    dist.is_hccl_available = lambda: True  # type: ignore[attr-defined]


def check(operator: str, tensors: list[torch.Tensor]) -> None:
    """Raise RuntimeError for a reduction that the real backend refuses; it gathers any dtype."""
    for tensor in tensors:
        if "reduce" in operator and tensor.dtype not in REDUCED_DTYPES:
            raise RuntimeError(f"HCCL AllReduce & Reduce: Unsupported data type {tensor.dtype}")
