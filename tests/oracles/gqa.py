"""The oracle of GQA and MQA: transformers' Qwen2."""

from __future__ import annotations

import torch
from oracles.oracle import dense_attention
from oracles.qwen2 import same_weights
from oracles.qwen2 import to_qwen2 as renamed

__all__ = ["EAGER", "renamed", "same_weights"]


def eager_window(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int
) -> torch.Tensor:
    """Compute window_attention by products of each query with `window` keys, those before the sequence hidden."""
    grouped = query.unflatten(2, (key.shape[2], -1)) * scale
    keys, values = (torch.cat([x.new_zeros(window - 1, *x.shape[1:]), x]).unfold(0, window, 1) for x in (key, value))
    before = torch.arange(len(query))[:, None] + torch.arange(window) < window - 1
    scores = torch.einsum("sbghd,sbgdw->sbghw", grouped, keys).masked_fill(before[:, None, None, None], -torch.inf)
    return torch.einsum("sbghw,sbgdw->sbghd", scores.softmax(dim=-1), values).flatten(2)


EAGER = {
    "efficientbench.model.attention.gqa.biased_causal_attention": dense_attention,
    "efficientbench.model.attention.gqa.window_attention": eager_window,
}
