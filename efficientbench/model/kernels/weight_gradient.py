"""Weight gradients, added to a sum that is wider than what is multiplied.

N = rows, O = outputs, I = inputs.
"""

from __future__ import annotations

import functools

import torch

WIDE = "one matmul that adds in float32"
NARROW = "matmul, then a sum in float32"
ROWS_AT_ONCE = 8192
"""Rows of the sum that are added at once where the product is a tensor of its own."""


def name(device_type: str, dtype: torch.dtype) -> str:
    """How a device type adds gradients of a dtype."""
    return WIDE if dtype == torch.float32 or adds_wide(device_type, dtype) else NARROW


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total [O, I] += leftᵀ · right for left [N, O] and right [N, I]; total may be wider than the others."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
    elif total.dtype == torch.float32 and adds_wide(left.device.type, left.dtype):
        _add_wide(total, left, right)
    else:
        # In pieces, because adding a narrower dtype makes a float32 copy of it first.
        for rows in range(0, total.shape[0], ROWS_AT_ONCE):
            total[rows : rows + ROWS_AT_ONCE] += left[:, rows : rows + ROWS_AT_ONCE].t() @ right


def _add_wide(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    torch.ops.aten.addmm.dtype_out(total, left.t(), right, torch.float32, out=total)


@functools.cache
def adds_wide(device_type: str, dtype: torch.dtype) -> bool:
    """Whether a matmul of narrow factors adds to a float32 sum here: tried once, and compared with what it should give.

    torch's overload with an output dtype is of CUDA's BLAS, and newer than the oldest torch that we run on.
    """
    if device_type != "cuda" or not torch.cuda.is_available() or not hasattr(torch.ops.aten.addmm, "dtype_out"):
        return False
    # Sums that neither factors nor product hold in the narrow dtype: 1 + 2^-16 is lost where anything is rounded.
    left = torch.full((16, 32), 2.0**-8, dtype=dtype, device=device_type)
    right = torch.full((16, 64), 2.0**-12, dtype=dtype, device=device_type)
    total = torch.ones(32, 64, dtype=torch.float32, device=device_type)
    try:
        _add_wide(total, left, right)
    except (RuntimeError, NotImplementedError):
        return False
    return bool((total == 1 + 2.0**-16).all())
