"""The oracle of GQA and MQA: transformers' Qwen2."""

from __future__ import annotations

import torch
from oracles.oracle import dense_attention
from oracles.qwen2 import same_weights
from oracles.qwen2 import to_qwen2 as renamed

__all__ = ["EAGER", "renamed", "same_weights"]


def eager_window(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    sinks: torch.Tensor | None = None,
    by_blocks: bool = False,
) -> torch.Tensor:
    """Compute window_attention by products of each query with `window` keys, those before the sequence hidden."""
    window = len(key) if window is None else window
    grouped = query.unflatten(2, (key.shape[2], -1)) * scale
    keys, values = (torch.cat([x.new_zeros(window - 1, *x.shape[1:]), x]).unfold(0, window, 1) for x in (key, value))
    before = torch.arange(len(query))[:, None] + torch.arange(window) < window - 1
    scores = torch.einsum("sbghd,sbgdw->sbghw", grouped, keys).masked_fill(before[:, None, None, None], -torch.inf)
    if sinks is not None:
        of_sinks = sinks.view(key.shape[2], -1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, of_sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., :window]
    return torch.einsum("sbghw,sbgdw->sbghd", weights, values).flatten(2)


EAGER = {
    "efficientbench.model.attention.gqa.biased_causal_attention": dense_attention,
    "efficientbench.model.attention.gqa.window_attention": eager_window,
}
