"""Attention of a few new queries to the keys and values in a cache.

Q = new tokens of a row, B = rows, T = keys to read, D and E = head dimensions of keys and values.
"""

from __future__ import annotations

import torch

NAME = "torch matmuls over the cache, softmax in float32"


def cached_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    mask: torch.Tensor,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return softmax(scale · q kᵀ + mask) v; query head h reads key/value group h // (heads / groups).

    The heads of a group are rows of one product, which reads the group's keys once.

    Args:
        query: [Q, B, heads, D]
        keys: [B, groups, T, D]
        values: [B, groups, T, E]
        scale: factor on the products, not on the mask.
        mask: [B, heads or 1, Q, T] float32, −∞ hides a key; every query sees at least one key.
        sinks: [heads], one more score of each head, for nothing; None: none.

    Returns:
        [Q, B, heads · E]
    """
    new, batch, heads, _ = query.shape
    rows = (query * scale).permute(1, 2, 0, 3).reshape(batch * keys.shape[1], -1, keys.shape[-1])
    scores = torch.bmm(rows, keys.flatten(0, 1).transpose(1, 2)).float().view(batch, heads, new, -1)
    scores = scores + mask
    if sinks is None:
        probabilities = scores.softmax(dim=-1)
    else:
        of_sinks = sinks.float()[:, None, None].expand(batch, heads, new, 1)
        probabilities = torch.cat([scores, of_sinks], dim=-1).softmax(dim=-1)[..., :-1]
    probabilities = probabilities.to(values.dtype).reshape(*rows.shape[:2], -1)
    out = torch.bmm(probabilities, values.flatten(0, 1))
    return out.view(batch, heads, new, -1).permute(2, 0, 1, 3).flatten(2)
