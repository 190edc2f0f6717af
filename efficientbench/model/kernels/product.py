"""A product of two matrices, by the CPU's faster library where torch uses the slower one.

On x86 torch multiplies float32 matrices by oneMKL, and uses oneDNN only for narrower dtypes.
N = rows, I = inputs, O = outputs.
"""

from __future__ import annotations

import functools

import torch

from efficientbench.devices.cpu import onednn_is_faster

ONEDNN = "oneDNN"


def linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return x [N, I] · weightᵀ [I, O] → [N, O], written into `out` unless that is None; no gradient."""
    if not by_onednn(x.device.type, x.dtype):
        return torch.mm(x, weight.t(), out=out)
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product if out is None else out.copy_(product)


@functools.cache
def by_onednn(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether `linear` calls oneDNN itself, by the operator with which torch.compile replaces linear layers."""
    faster = device_type == "cpu" and dtype == torch.float32 and onednn_is_faster()
    return faster and hasattr(torch.ops.mkldnn, "_linear_pointwise")
