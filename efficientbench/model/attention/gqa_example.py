"""An attention variant to start from: grouped-query attention whose scores are computed here, in training and decoding.

docs/variants.md says what the layer gets, its shapes, and what each part of the project asks of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from efficientbench.architecture import gqa
from efficientbench.architecture.variant import AttentionVariant

# Neither torch nor Megatron is imported at the top: `plan` reads this file without them.
if TYPE_CHECKING:
    import torch

    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class Config(gqa.GQAConfig):
    """The keys under model.attention: those of gqa. A field here is a further key, and an option of every command."""

    kind: Any = Field(description="attention variant")
    window: None = Field(default=None, description="`attend` has none")
    sinks: None = Field(default=None, description="`attend` has none")


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Attend causally in whole sequences: query [S, B, heads, D], key and value [S, B, groups, D].

    Returns [S, B, heads · D].
    """
    import torch

    query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=True
    )
    return out.permute(2, 0, 1, 3).flatten(2)


def attend_kept(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, mask: torch.Tensor
) -> torch.Tensor:
    """Attend from new tokens to all kept ones: query [S, B, heads, D], keys and values [B, groups, T, D].

    `mask` [B, 1, S, T] is added to scores. Returns [S, B, heads · D].
    """
    import torch

    query = query.permute(1, 2, 0, 3)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask.to(query.dtype), scale=scale, enable_gqa=True
    )
    return out.permute(2, 0, 1, 3).flatten(2)


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of the layer: Megatron's projections around `attend` and `attend_kept`."""
    from efficientbench.model.attention.gqa import spec

    return spec(model, position, attend, attend_kept)


# Formulas, layouts and the state of decoding stay those of grouped-query attention: change what your scores change.
# efficientbench/architecture/variant.py says what each field means.
VARIANT: AttentionVariant = replace(
    gqa.VARIANT,
    config=Config,
    layer=f"{__name__}:layer",
    # `attend` adds no bias to scores.
    places=frozenset({"nothing", "embedding", "queries and keys"}),
    # The configured kernels, which ranks that share a sequence call too, do not compute these scores.
    plain_scores=None,
    kernels=None,
    context_parallel=False,
    # Once a class of transformers computes the same: "efficientbench.export.gqa:EXPORTER".
    exporter=None,
    exportable=None,
)
