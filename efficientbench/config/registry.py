"""Find the declaration of the attention or the positional encoding that a model names by its `kind`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efficientbench.config.variant import AttentionVariant, Place, PositionVariant
from efficientbench.model import variants

if TYPE_CHECKING:
    from efficientbench.config.model import ModelConfig

ATTENTION: dict[str, AttentionVariant] = {each.config.model_fields["kind"].default: each for each in variants.ATTENTION}
"""The project's own attention variants by kind; the first is the default."""
POSITIONS: dict[str, PositionVariant] = {each.config.model_fields["kind"].default: each for each in variants.POSITIONS}
"""The project's own positional encodings by kind; the first is the default."""


def attention_of(model: ModelConfig) -> AttentionVariant:
    """Return the declaration of a model's attention."""
    return ATTENTION[model.attention.kind]


def position_of(model: ModelConfig) -> PositionVariant:
    """Return the declaration of a model's positional encoding."""
    return POSITIONS[model.position.kind]


def positions_at(places: frozenset[Place]) -> str:
    """List the kinds of our positional encodings that change one of the places, for a message."""
    kinds = [kind for kind, each in POSITIONS.items() if each.place in places]
    return " or ".join(part for part in (", ".join(kinds[:-1]), kinds[-1]) if part)
