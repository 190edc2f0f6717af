"""Causal softmax attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F

NAME = "torch scaled_dot_product_attention"


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """softmax(scale · q kᵀ + causal mask) v; query head h reads key/value group h // (heads / groups).

    Args:
        query: [S, B, heads, D]
        key, value: [S, B, groups, D]
        scale: factor on the scores.

    Returns:
        [S, B, heads · D]
    """
    sequence, batch, heads, head_dim = query.shape
    out = F.scaled_dot_product_attention(
        query.permute(1, 2, 0, 3),
        key.permute(1, 2, 0, 3),
        value.permute(1, 2, 0, 3),
        # A Boolean mask instead would leave the flash kernel its second half to compute.
        is_causal=True,
        scale=scale,
        enable_gqa=heads != key.shape[2],
    )
    return out.permute(2, 0, 1, 3).reshape(sequence, batch, heads * head_dim)
