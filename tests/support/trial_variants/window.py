"""A sliding window over grouped-query attention, with a norm on each query and key head."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pydantic import Field

from efficientbench.architecture.variant import AttentionConfig, AttentionCosts, AttentionVariant
from efficientbench.basics.part import PositiveInt

if TYPE_CHECKING:
    import torch

    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class WindowConfig(AttentionConfig):
    """Keys of the sliding window."""

    query_groups: PositiveInt = Field(default=2, description="key/value heads")
    window: PositiveInt = Field(default=32, description="keys that a query sees, with its own")

    def key_value_heads(self, heads: int) -> int:
        return self.query_groups


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int) -> torch.Tensor:
    """Attend to the latest `window` keys: [S, B, heads, D], key and value [S, B, groups, D] → [S, B, heads · D]."""
    import torch

    position = torch.arange(query.shape[0], device=query.device)
    behind = position[:, None] - position
    out = torch.nn.functional.scaled_dot_product_attention(
        *(each.permute(1, 2, 0, 3) for each in (query, key, value)),
        attn_mask=(behind >= 0) & (behind < window),
        scale=scale,
        enable_gqa=True,
    )
    return out.permute(2, 0, 1, 3).flatten(2)


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of GQA's layer, with the window and the norms."""
    from efficientbench.model.attention.gqa import spec
    from efficientbench.model.layers import RMSNorm

    assert isinstance(model.attention, WindowConfig)
    made = spec(model, position, functools.partial(attend, window=model.attention.window))
    made.submodules.q_layernorm = made.submodules.k_layernorm = RMSNorm
    return made


def _projections(model: Decoder) -> int:
    return 2 * (model.heads + model.key_value_heads) * model.head_dim * model.hidden_size


def _window(model: Decoder) -> int:
    assert isinstance(model.attention, WindowConfig)
    return model.attention.window


def _keys(model: Decoder, seq_len: int) -> float:
    return sum(min(length, _window(model)) for length in range(1, seq_len + 1)) / seq_len


VARIANT = AttentionVariant(
    config=WindowConfig,
    layer=f"{__name__}:layer",
    costs=AttentionCosts(
        parameters=lambda model: _projections(model) + 2 * model.head_dim,
        projection_flops=lambda model: 2 * _projections(model),
        score_flops=lambda model, seq_len: 4 * model.heads * model.head_dim * min(_window(model), seq_len),
        causal_score_flops=lambda model, seq_len: int(4 * model.heads * model.head_dim * _keys(model, seq_len)),
        keys_read_per_query=_keys,
        cached=lambda model: 0,
    ),
    places=frozenset({"nothing", "embedding", "queries and keys"}),
    tiny=("model.attention.window=8",),
    further={"two tokens": ("model.attention.window=2",)},
    hidden_at=lambda model, seq_len: (
        f"its window of {_window(model)} tokens holds the whole sequence of {seq_len}"
        if _window(model) >= seq_len
        else None
    ),
)
