"""Weight gradients, added to a sum whose dtype may be wider than the factors'.

N = rows, O = outputs, I = inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

from efficientbench.devices.cpu import multiplies_bf16
from efficientbench.model.kernels import product

WIDE = "one matmul that adds in float32"
WIDENED = "factors widened to float32, one matmul that adds"
NARROW = "matmul, then a sum in float32"
ONEDNN = f"matmul by {product.ONEDNN}, then a sum"
ROWS_AT_ONCE = 8192
"""Rows of the sum to add at once where the product is a separate tensor."""
WIDENED_AT_ONCE = 1024
"""Rows of the factors to widen at once: enough for the matmul's full speed, few enough to bound memory."""


def name(device_type: str, dtype: torch.dtype) -> str:
    """Return the name of the way in which a device type adds gradients of a dtype."""
    if product.by_onednn(product.ADDED, device_type, dtype):
        return ONEDNN
    if dtype == torch.float32 or adds_wide(device_type, dtype):
        return WIDE
    return WIDENED if widens(device_type, dtype) else NARROW


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add left [N, O]ᵀ · right [N, I] to total [O, I], whose dtype may be wider than the factors'."""
    if total.dtype == left.dtype:
        if product.by_onednn(product.ADDED, left.device.type, left.dtype):
            _add_separate(total, left, right, product.multiply)
        else:
            total.addmm_(left.t(), right)
    elif total.dtype == torch.float32 and adds_wide(left.device.type, left.dtype):
        _add_wide(total, left, right)
    elif total.dtype == torch.float32 and widens(left.device.type, left.dtype):
        for some_left, some_right in zip(left.split(WIDENED_AT_ONCE), right.split(WIDENED_AT_ONCE), strict=True):
            total.addmm_(some_left.float().t(), some_right.float())
    else:
        _add_separate(total, left, right, F.linear)


def _add_separate(
    total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, linear: Callable[..., torch.Tensor]
) -> None:
    """Add the product, a separate tensor, a few rows at a time: it is copied to float32 if it is narrower."""
    for rows in range(0, total.shape[0], ROWS_AT_ONCE):
        total[rows : rows + ROWS_AT_ONCE] += linear(left[:, rows : rows + ROWS_AT_ONCE].t(), right.t())


def added_to_main_grad(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Mark that a parameter's gradient was added to its `main_grad`; return an uninitialized gradient for autograd.

    Megatron's hook on the parameter needs some gradient to notice that `main_grad` is complete and can be reduced; the
    mark keeps the hook from adding it.
    """
    parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    return torch.empty_like(parameter)


@functools.cache
def widens(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether factors are widened to float32 first: on a CPU without matrix products in bf16.

    float32 is many times faster there, and nothing is rounded before the sum.
    """
    return device_type == "cpu" and dtype == torch.bfloat16 and multiplies_bf16() is False


def _add_wide(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    torch.ops.aten.addmm.dtype_out(total, left.t(), right, torch.float32, out=total)


@functools.cache
def adds_wide(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether a matmul of narrow factors can add to a float32 sum on this device: tried once, and checked.

    torch has the overload with an output dtype for CUDA's BLAS alone, and not in the oldest torch that we support.
    """
    if device_type != "cuda" or not torch.cuda.is_available() or not hasattr(torch.ops.aten.addmm, "dtype_out"):
        return False
    # The sum 1 + 2^-16 does not fit into a narrow dtype: it is lost if anything is rounded.
    left = torch.full((16, 32), 2.0**-8, dtype=dtype, device=device_type)
    right = torch.full((16, 64), 2.0**-12, dtype=dtype, device=device_type)
    total = torch.ones(32, 64, dtype=torch.float32, device=device_type)
    try:
        _add_wide(total, left, right)
    except (RuntimeError, NotImplementedError):
        return False
    return bool((total == 1 + 2.0**-16).all())
