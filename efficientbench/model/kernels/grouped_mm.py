"""Matmuls of rows that are grouped by expert: each group has a weight of its own.

N = rows, E = groups, I = inputs, O = outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F

from efficientbench.model.kernels import npu_fused
from efficientbench.model.kernels.weight_gradient import add_product

NAMES = {True: "torch grouped_mm", False: "torch mm, one expert after another"}


def name(device_type: str) -> str:
    """The kernel that serves a device type."""
    return npu_fused.GROUPED_MATMUL if npu_fused.serves(device_type) else NAMES[has_grouped_mm(device_type)]


def has_grouped_mm(device_type: str) -> bool:
    """Whether torch multiplies all groups in one call on this device type."""
    return hasattr(F, "grouped_mm") and device_type in ("cpu", "cuda")


def grouped_mm(x: torch.Tensor, weights: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """out = x · weights[e] for the rows of each group e; no gradient.

    Args:
        x: [N, I], the rows of group 0 first.
        weights: [E, I, O]
        sizes: rows of each group; some may have none.

    Returns:
        [N, O]
    """
    if npu_fused.serves(x.device.type):
        return npu_fused.grouped_mm(x, weights, sizes)
    if has_grouped_mm(x.device.type):
        ends = torch.tensor(list(accumulate(sizes)), dtype=torch.int32, device=x.device)
        # Gradients may come expanded, which grouped_mm refuses.
        return F.grouped_mm(x.contiguous(), weights, offs=ends)
    out = x.new_empty(x.shape[0], weights.shape[-1])
    for rows, weight, part in zip(x.split(list(sizes)), weights, out.split(list(sizes)), strict=True):
        torch.mm(rows, weight, out=part)
    return out


def accumulate_weight_gradient(
    x: torch.Tensor, grad_out: torch.Tensor, sizes: Sequence[int], gradient: torch.Tensor
) -> None:
    """gradient[e] += grad_outᵀ · x over the rows of each group e, one group after another: no second gradient's size.

    Args:
        x: [N, I]
        grad_out: [N, O]
        sizes: rows of each group.
        gradient: [E, O, I]; may be wider than the others.
    """
    if npu_fused.adds_weight_gradient(x, gradient):
        npu_fused.accumulate_weight_gradient(x, grad_out, sizes, gradient)
        return
    groups = zip(x.split(list(sizes)), grad_out.split(list(sizes)), gradient, strict=True)
    for rows, grad_rows, total in groups:
        add_product(total, grad_rows, rows)
