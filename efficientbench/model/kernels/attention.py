"""Causal softmax attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from efficientbench.model.kernels import npu_fused

NAME = "torch scaled_dot_product_attention"


def name(device_type: str) -> str:
    """The kernel that serves a device type."""
    return npu_fused.ATTENTION if npu_fused.serves(device_type) else NAME


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """softmax(scale · q kᵀ + causal mask) v; query head h reads key/value group h // (heads / groups).

    The queries are those of the last Q of the S tokens.

    Args:
        query: [Q, B, heads, D]
        key: [S, B, groups, D]
        value: [S, B, groups, E], E ≤ D
        scale: factor on the scores.

    Returns:
        [Q, B, heads · E]
    """
    if npu_fused.serves(query.device.type):
        return npu_fused.causal_attention(query, key, value, scale)
    value_dim = value.shape[-1]
    if value_dim != query.shape[-1] and query.device.type == "cpu":
        # The CPU's flash kernel wants values as wide as keys. The zeros cost less than scores in memory would.
        value = F.pad(value, (0, query.shape[-1] - value_dim))
    mask = None if query.shape[0] == key.shape[0] else causal_lower_right(query.shape[0], key.shape[0])
    out = F.scaled_dot_product_attention(
        query.permute(1, 2, 0, 3),
        key.permute(1, 2, 0, 3),
        value.permute(1, 2, 0, 3),
        # A Boolean mask instead would leave the flash kernel its second half to compute.
        is_causal=mask is None,
        attn_mask=mask,
        scale=scale,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return out[..., :value_dim].permute(2, 0, 1, 3).flatten(2)
