"""Gated delta rule (arXiv 2412.06464, equation 10): a recurrent layer whose state does not grow with the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efficientbench.architecture.variant import AttentionConfig, AttentionCosts, AttentionVariant

if TYPE_CHECKING:
    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class DeltaConfig(AttentionConfig):
    """No keys."""


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of the whole layer, projections included."""
    from megatron.core.transformer.spec_utils import ModuleSpec

    from .delta_layer import GatedDelta

    return ModuleSpec(module=GatedDelta, params={"heads": model.heads, "dim": model.head_dim})


def _projections(model: Decoder) -> int:
    return model.hidden_size * model.heads * (4 * model.head_dim + 2)


VARIANT = AttentionVariant(
    config=DeltaConfig,
    layer=f"{__name__}:layer",
    costs=AttentionCosts(
        parameters=_projections,
        projection_flops=lambda model: 2 * _projections(model),
        # Two products with the state [D, D] of each head: what it recalls, and what it answers.
        score_flops=lambda model, seq_len: 4 * model.heads * model.head_dim**2,
        causal_score_flops=lambda model, seq_len: 4 * model.heads * model.head_dim**2,
        # As much for any sequence.
        state_bytes=lambda model, tokens, tp, element_bytes: model.heads * model.head_dim**2 * element_bytes,
        decode_flops=lambda model, tokens: 4 * model.heads * model.head_dim**2,
        decode_reads=lambda model, tokens: model.heads * model.head_dim**2,
    ),
    profiled_as=("GatedDelta",),
)
