"""transformers' attention of gpt-oss: sinks, with a window or without, for given queries, keys and values."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None, sinks: torch.Tensor
) -> torch.Tensor:
    """Compute window_attention.window_attention, whose shapes and arguments these are."""
    length, groups = len(query), key.shape[2]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    hidden = (distance < 0) | (distance >= (window or length))
    out, _ = eager_attention_forward(
        SimpleNamespace(num_key_value_groups=query.shape[2] // groups, sinks=sinks, training=False),
        *(each.permute(1, 2, 0, 3) for each in (query, key, value)),
        torch.zeros(length, length).masked_fill(hidden, -torch.inf),
        scaling=scale,
    )
    return out.flatten(2).transpose(0, 1)
