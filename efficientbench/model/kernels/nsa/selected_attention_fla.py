"""The selected branch of NSA by fla-core's Triton kernel, on NVIDIA GPUs. Not run on a GPU yet.

Its forward and backward pass were compared with the equations in Triton's interpreter.
"""

from __future__ import annotations

import functools
import importlib

import torch
import torch.nn.functional as F

from efficientbench.model.kernels.nsa.choose_blocks import SelectionShape

NAME = "fla-core parallel_nsa (Triton)"
LEAST_GROUP = 16
"""Query heads of a group are a dimension of the kernel's tiles: a power of two, and no fewer than these."""
LARGEST_HEAD = 256
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
    fits = power_of_two and shape.block >= LEAST_BLOCK and shape.head_dim <= LARGEST_HEAD
    return device_type == "cuda" and fits and _installed()


def selected_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    chosen: torch.Tensor,
    block_size: int,
    scale: float,
) -> torch.Tensor:
    """Compute selected_attention.selected_attention; a group is filled up with query heads of zero."""
    from fla.ops.nsa import parallel_nsa

    group = query.shape[2]
    width = max(1 << (group - 1).bit_length(), LEAST_GROUP)
    out: torch.Tensor = parallel_nsa(
        F.pad(query, (0, 0, 0, width - group)),
        key.unsqueeze(2),
        value.unsqueeze(2),
        # Some releases multiply by this gate even where it is None.
        g_slc=query.new_ones(*query.shape[:2], width),
        block_indices=chosen.unsqueeze(2),
        block_counts=chosen.shape[2],
        block_size=block_size,
        scale=scale,
    )
    return out[:, :, :group]
