"""An attention variant to start from: grouped-query attention whose scores are computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from efficientbench.architecture.variant import AttentionConfig, AttentionCosts, AttentionVariant

# Neither torch nor Megatron is imported at the top: `plan` reads this file without them.
if TYPE_CHECKING:
    import torch

    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class Config(AttentionConfig):
    """The keys under model.attention; each becomes an option of every command."""

    query_groups: int = Field(default=2, ge=1, description="key/value heads")

    def key_value_heads(self, heads: int) -> int:
        return self.query_groups


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the attention's output [S, B, heads * D]; query [S, B, heads, D], key and value [S, B, groups, D]."""
    import torch

    query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=True
    )
    return out.permute(2, 0, 1, 3).flatten(2)


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of the layer: Megatron's projections around `attend`."""
    from efficientbench.model.attention.gqa import spec

    return spec(model, position, attend)


def _projections(model: Decoder) -> int:
    return 2 * (model.heads + model.key_value_heads) * model.head_dim * model.hidden_size


# A field that is not set means "not supported" or a figure that is n/a: efficientbench/architecture/variant.py has all.
VARIANT = AttentionVariant(
    config=Config,
    layer=f"{__name__}:layer",
    costs=AttentionCosts(
        parameters=_projections,
        projection_flops=lambda model: 2 * _projections(model),
        # Per token, over all keys and over those that a query sees.
        score_flops=lambda model, seq_len: 4 * model.heads * model.head_dim * seq_len,
        causal_score_flops=lambda model, seq_len: 2 * model.heads * model.head_dim * seq_len,
        keys_read_per_query=lambda model, seq_len: (seq_len + 1) / 2,
    ),
    # What its positional encoding may change; `spec` rotates queries and keys.
    places=frozenset({"nothing", "embedding", "queries and keys"}),
    # `spec` has the norms of `model.qk_norm` too.
    qk_norm=True,
)
