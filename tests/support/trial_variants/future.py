"""Attention that sees one token after its own: a mistake that is to be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efficientbench.architecture.variant import AttentionConfig, AttentionVariant

if TYPE_CHECKING:
    import torch

    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class FutureConfig(AttentionConfig):
    """No keys."""


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Attend to all earlier keys and the next one."""
    import torch

    position = torch.arange(query.shape[0], device=query.device)
    out = torch.nn.functional.scaled_dot_product_attention(
        *(each.permute(1, 2, 0, 3) for each in (query, key, value)),
        attn_mask=position[:, None] - position >= -1,
        scale=scale,
    )
    return out.permute(2, 0, 1, 3).flatten(2)


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of GQA's layer with these scores."""
    from efficientbench.model.attention.gqa import spec

    return spec(model, position, attend)


VARIANT = AttentionVariant(
    config=FutureConfig, layer=f"{__name__}:layer", places=frozenset({"nothing", "embedding", "queries and keys"})
)
