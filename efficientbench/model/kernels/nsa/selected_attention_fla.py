"""The selected branch of NSA by fla-core's Triton kernel, on NVIDIA GPUs.

Its forward and backward pass were compared with the equations in Triton's interpreter.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
import torch.nn.functional as F

from efficientbench.model.kernels.nsa.choose_blocks import SelectionShape

NAME = "fla-core parallel_nsa (Triton)"
LEAST_GROUP = 16
"""The fewest query heads of a group, which are a dimension of the kernel's tiles and so also a power of two."""
LARGEST_HEAD, LARGEST_HEAD_OF_HOPPER = 128, 256
"""The widest heads, which the kernel holds whole in a multiprocessor's shared memory."""
LEAST_BLOCK = 16


@functools.cache
def _installed() -> bool:
    try:
        importlib.import_module("fla.ops.nsa")
    except Exception:  # a broken installation of Triton fails in ways of its own
        return False
    return True


def serves(device_type: str, shape: SelectionShape) -> bool:
    """Return whether the kernel computes the selected branch for this shape on this device type."""
    power_of_two = shape.block & (shape.block - 1) == 0
    fits = power_of_two and shape.block >= LEAST_BLOCK and shape.head_dim <= LARGEST_HEAD_OF_HOPPER
    if device_type != "cuda" or not fits or not _installed():
        return False
    from fla.utils import check_shared_mem

    return shape.head_dim <= LARGEST_HEAD or check_shared_mem("hopper")


class SelectedAttention(torch.autograd.Function):
    """Softmax attention over the chosen blocks; see `selected_attention`.

    fla-core's own autograd function would also keep the padded group until the backward pass, pool keys for a branch
    that is not ours, and multiply by a gate of ones.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        chosen: torch.Tensor,
        block_size: int,
        scale: float,
    ) -> torch.Tensor:
        from fla.ops.nsa.parallel import parallel_nsa_fwd

        key, value, count = key.contiguous(), value.contiguous(), chosen.shape[2]
        missing = (1 << (count - 1).bit_length()) - count
        # The backward pass takes only a power of two.
        blocks = F.pad(chosen, (0, missing), value=-1) if missing else chosen
        ctx.options = {"block_counts": blocks.shape[2], "block_size": block_size, "scale": scale}
        filled, log_sums = parallel_nsa_fwd(
            q=_fill(query), k=key[:, :, None], v=value[:, :, None], block_indices=blocks[:, :, None], **ctx.options
        )
        out: torch.Tensor = filled[:, :, : query.shape[2]].contiguous()
        ctx.save_for_backward(query, key, value, blocks, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from fla.ops.nsa.parallel import parallel_nsa_bwd

        query, key, value, blocks, out, log_sums = ctx.saved_tensors
        grad_query, grad_key, grad_value = parallel_nsa_bwd(
            q=_fill(query),
            k=key[:, :, None],
            v=value[:, :, None],
            o=_fill(out),
            lse=log_sums,
            do=_fill(grad_outputs[0]),
            block_indices=blocks[:, :, None],
            **ctx.options,
        )
        return grad_query[:, :, : query.shape[2]], grad_key.squeeze(2), grad_value.squeeze(2), None, None, None


def _fill(x: torch.Tensor) -> torch.Tensor:
    """Pad a group with query heads of zero: [N, S, G, D] → [N, S, a power of two, D]."""
    group = x.shape[2]
    width = max(1 << (group - 1).bit_length(), LEAST_GROUP)
    return F.pad(x, (0, 0, 0, width - group)).contiguous()
