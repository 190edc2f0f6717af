"""Matmuls of rows that are grouped by expert: each group has a weight of its own.

N = rows, E = groups, I = inputs, O = outputs.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from efficientbench.model.kernels import npu_fused, weight_gradient

NAMES = {True: "torch grouped_mm", False: "torch mm, one expert after another"}
AT_ONCE_FROM = (9, 10)
"""Major compute capabilities on which torch's grouped_mm is one kernel: Hopper and Blackwell of data centres. On others
it reads the offsets back each time, and multiplies one group after another."""


class RowGroups:
    """How many rows each group has, for kernels on the device and as numbers on the host.

    Sizes that the device has counted are sent to the host at once, but the host waits for them only in `sizes`.
    """

    def __init__(self, sizes: torch.Tensor, device: torch.device) -> None:
        """`sizes` [E] integers, on the host or on `device`."""
        self.ends = sizes.to(device, non_blocking=True).cumsum(0, dtype=torch.int32)
        """[E] int32 on `device`: the row after each group's last."""
        self._on_host = sizes
        self._arrived: torch.cuda.Event | None = None
        # Not `is_cuda`, which torch_npu makes true for its own devices too.
        if sizes.device.type == "cuda":
            self._on_host = sizes.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Rows of each group. Waits until the device has counted them, but not for work that was queued later."""
        if self._arrived is not None:
            self._arrived.synchronize()
        sizes: list[int] = self._on_host.tolist()
        return sizes


def name(device_type: str, dtype: torch.dtype) -> str:
    """Return the name of the kernel that serves a device type."""
    return npu_fused.GROUPED_MATMUL if npu_fused.serves(device_type) else NAMES[multiplies_at_once(device_type, dtype)]


def weight_gradient_name(device_type: str, dtype: torch.dtype) -> str:
    """Return how the weight gradients of all groups are added to their float32 sums."""
    if npu_fused.adds_weight_gradient(device_type, dtype, torch.float32):
        return npu_fused.GROUPED_WEIGHT_GRADIENT
    return f"{weight_gradient.name(device_type, dtype)}, one expert after another"


def has_grouped_mm(device_type: str) -> bool:
    """Return whether this torch has a call that multiplies all groups on the device type."""
    return hasattr(F, "grouped_mm") and device_type in ("cpu", "cuda")


def multiplies_at_once(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether that call needs no numbers on the host; for `cuda` without a GPU, whether that is possible."""
    if device_type != "cuda" or not has_grouped_mm(device_type):
        return has_grouped_mm(device_type)
    known = torch.cuda.is_available()
    return dtype == torch.bfloat16 and (not known or torch.cuda.get_device_capability()[0] in AT_ONCE_FROM)


def grouped_mm(x: torch.Tensor, weights: torch.Tensor, groups: RowGroups) -> torch.Tensor:
    """Return x · weights[e] for the rows of each group e; no gradient.

    Args:
        x: [N, I], the rows of group 0 first.
        weights: [E, I, O]
        groups: of the N rows; some may have none.

    Returns:
        [N, O]
    """
    if not len(x):
        return x.new_empty(0, weights.shape[-1])
    if npu_fused.serves(x.device.type):
        return npu_fused.grouped_mm(x, weights, groups.ends)
    if multiplies_at_once(x.device.type, x.dtype):
        # Gradients may come expanded, which grouped_mm refuses.
        return F.grouped_mm(x.contiguous(), weights, offs=groups.ends)
    out = x.new_empty(x.shape[0], weights.shape[-1])
    for rows, weight, part in zip(x.split(groups.sizes), weights, out.split(groups.sizes), strict=True):
        torch.mm(rows, weight, out=part)
    return out


def accumulate_weight_gradient(
    x: torch.Tensor, grad_out: torch.Tensor, groups: RowGroups, gradient: torch.Tensor
) -> None:
    """Add grad_outᵀ · x to gradient[e] over the rows of each group e.

    On NVIDIA GPUs one product after another: cuBLAS adds it to the float32 sum unrounded, as Transformer Engine's
    grouped layers do. torch's grouped_mm gives bf16 only (2.13: "output dtype must match mat_a"), which would be
    rounded before it is added and pass through memory twice more; and on Blackwell it leaves what was in memory for
    groups without rows (pytorch issue 172439). The numbers of rows were sent to the host in the forward pass.

    Args:
        x: [N, I]
        grad_out: [N, O]
        groups: of the N rows.
        gradient: [E, O, I]; may be wider than the others.
    """
    if not len(x):
        return
    if npu_fused.adds_weight_gradient(x.device.type, x.dtype, gradient.dtype):
        npu_fused.accumulate_weight_gradient(x, grad_out, groups.ends, gradient)
        return
    for rows, grad_rows, total in zip(x.split(groups.sizes), grad_out.split(groups.sizes), gradient, strict=True):
        if len(rows):
            weight_gradient.add_product(total, grad_rows, rows)
