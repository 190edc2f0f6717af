"""Attention to consecutive keys by torch_npu's fused kernel, on Ascend NPUs. Not run on an NPU yet.

N = batch × groups, S = sequence, G = query heads of a group, K = keys, D = head dimension.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from efficientbench.model.kernels import npu_fused
from efficientbench.model.kernels.nsa.reach import Reach

NAME = npu_fused.ATTENTION
FUSES = False
"""Whether the choice of blocks uses compiled kernels on this device type."""


def range_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, reach: Reach
) -> torch.Tensor:
    """Compute range_attention.range_attention."""
    return range_attention_with_sums(query, key, value, scale, reach)[0]


def range_attention_with_sums(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, reach: Reach
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute range_attention.range_attention, and the logarithms of the softmax's sums, [N, S, G] in float32."""
    # The first queries see no key, and the documentation does not say what the kernel computes for such a row.
    blind = min(reach.blind, query.shape[1])
    if blind == query.shape[1]:
        return torch.zeros_like(query), query.new_zeros(query.shape[:3], dtype=torch.float32)
    if reach.length == reach.stride == 1 and reach.width is not None and not reach.offset:
        window, mask = reach.width, None
    else:
        window, mask = None, _mask(reach, query.shape[1], key.shape[1], query.device)
    out, log_sums = npu_fused.range_attention(query[:, blind:], key[:, :, None], value[:, :, None], scale, window, mask)
    return F.pad(out, (0, 0, 0, 0, blind, 0)), F.pad(log_sums, (0, 0, blind, 0))


@functools.lru_cache(maxsize=4)
def _mask(reach: Reach, queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """Return the mask of the queries that see a key, [S − blind, K]; True hides a key."""
    hidden = reach.hidden(torch.arange(reach.blind, queries), torch.arange(keys))
    return hidden.to(device)
