"""Matmuls of rows that are grouped by expert, with one weight for each group.

N = rows, E = groups, I = inputs, O = outputs.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from efficientbench.model.kernels import npu_fused, weight_gradient

NAMES = {True: "torch grouped_mm", False: "torch mm, one expert after another"}
AT_ONCE_FROM = (9, 10)
"""Major compute capabilities on which torch's grouped_mm is one kernel: data-centre Hopper and Blackwell. On others it
copies the offsets to the host in every call, and multiplies one group after another."""


class RowGroups:
    """The number of rows of each group, for kernels on the device and as numbers on the host.

    Sizes that the device counted are copied to the host at once, but the host waits for them only in `sizes`.
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
        """Rows of each group. Waits until the device has counted them, but not for work queued later."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._on_host.tolist()


def name(device_type: str, dtype: torch.dtype) -> str:
    """Return the name of a device type's kernel."""
    return npu_fused.GROUPED_MATMUL if npu_fused.serves(device_type) else NAMES[multiplies_at_once(device_type, dtype)]


def weight_gradient_name(device_type: str, dtype: torch.dtype) -> str:
    """Return the name of the kernel that adds the groups' weight gradients to their float32 sums."""
    if npu_fused.adds_weight_gradient(device_type, dtype, torch.float32):
        return npu_fused.GROUPED_WEIGHT_GRADIENT
    return f"{weight_gradient.name(device_type, dtype)}, one expert after another"


def has_grouped_mm(device_type: str) -> bool:
    """Return whether this torch has a function that multiplies all groups on the device type."""
    return hasattr(F, "grouped_mm") and device_type in ("cpu", "cuda")


def multiplies_at_once(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether grouped_mm needs no sizes on the host; for `cuda` without a GPU, whether that is possible."""
    if device_type != "cuda" or not has_grouped_mm(device_type):
        return has_grouped_mm(device_type)
    known = torch.cuda.is_available()
    return dtype == torch.bfloat16 and (not known or torch.cuda.get_device_capability()[0] in AT_ONCE_FROM)


def grouped_mm(x: torch.Tensor, weights: torch.Tensor, groups: RowGroups) -> torch.Tensor:
    """Return x · weights[e] for the rows of each group e; no gradient.

    Args:
        x: [N, I], the rows of group 0 first.
        weights: [E, I, O]
        groups: the groups of the N rows; a group may be empty.

    Returns:
        [N, O]
    """
    if not len(x):
        return x.new_empty(0, weights.shape[-1])
    if npu_fused.serves(x.device.type):
        return npu_fused.grouped_mm(x, weights, groups.ends)
    if multiplies_at_once(x.device.type, x.dtype):
        # Contiguous, because grouped_mm refuses expanded tensors, which gradients may be.
        return F.grouped_mm(x.contiguous(), weights, offs=groups.ends)
    out = x.new_empty(x.shape[0], weights.shape[-1])
    for rows, weight, part in zip(x.split(groups.sizes), weights, out.split(groups.sizes), strict=True):
        torch.mm(rows, weight, out=part)
    return out


def accumulate_weight_gradient(
    x: torch.Tensor, grad_out: torch.Tensor, groups: RowGroups, gradient: torch.Tensor
) -> None:
    """Add grad_outᵀ · x to gradient[e] over the rows of each group e.

    On NVIDIA GPUs one product after another: cuBLAS adds it to the float32 sum unrounded, as in Transformer Engine's
    grouped layers. torch's grouped_mm returns bf16 only (2.13: "output dtype must match mat_a"), which is rounded
    before the sum and costs two more passes over memory. On Blackwell it also leaves the results of empty groups
    uninitialized (pytorch issue 172439). The host has the groups' sizes since the forward pass.

    Args:
        x: [N, I]
        grad_out: [N, O]
        groups: the groups of the N rows.
        gradient: [E, O, I]; its dtype may be wider than the factors'.
    """
    if not len(x):
        return
    if npu_fused.adds_weight_gradient(x.device.type, x.dtype, gradient.dtype):
        npu_fused.accumulate_weight_gradient(x, grad_out, groups.ends, gradient)
        return
    for rows, grad_rows, total in zip(x.split(groups.sizes), grad_out.split(groups.sizes), gradient, strict=True):
        if len(rows):
            weight_gradient.add_product(total, grad_rows, rows)
