"""An attention variant to start from: a sliding window over grouped-query attention, which trains and decodes.

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
    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class Config(gqa.GQAConfig):
    """The keys under model.attention: those of gqa, and a window that every layer has."""

    kind: Any = Field(description="attention variant")
    window: int = Field(default=1024, ge=1, description="keys that a query sees, with its own")


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of the layer: Megatron's projections around a kernel of blocks, and a ring to decode."""
    from efficientbench.model.attention.gqa import spec

    return spec(model, position)


def _window(model: Decoder) -> int:
    assert isinstance(model.attention, Config)
    return model.attention.window


def _seen(model: Decoder, tokens: int) -> int:
    """Return how many keys the last of so many tokens sees."""
    return min(tokens, _window(model))


def _keys(model: Decoder, seq_len: int) -> float:
    """Return the mean number of keys that a query sees: the first queries see fewer."""
    seen = _seen(model, seq_len)
    return seen - seen * (seen - 1) / (2 * seq_len)


def _product(model: Decoder, seq_len: int) -> int:
    """Count forward FLOPs per token in the scores, or in their product with the values."""
    width, seen = model.heads * model.head_dim, _seen(model, seq_len)
    # A full square is halved, as everywhere; a window has its exact number of keys.
    return width * seq_len if seen == seq_len else width * (2 * seen * seq_len - seen * (seen - 1)) // seq_len


def _state(model: Decoder, tokens: int, tp: int) -> int:
    """Count the elements of keys and values that a rank keeps of a sequence."""
    return 2 * max(model.key_value_heads // tp, 1) * model.head_dim * _seen(model, tokens)


def _hidden_at(model: Decoder, seq_len: int) -> str | None:
    return f"its window of {_window(model)} tokens holds all {seq_len}" if _window(model) >= seq_len else None


# What a window changes of grouped-query attention; the rest, such as what ranks can share, stays as it is.
# efficientbench/architecture/variant.py says what each field means.
VARIANT: AttentionVariant = replace(
    gqa.VARIANT,
    config=Config,
    layer=f"{__name__}:layer",
    costs=replace(
        gqa.VARIANT.costs,
        # Per token, over all keys that the last query sees, and over those that each one sees.
        score_flops=lambda model, seq_len: 4 * model.heads * model.head_dim * _seen(model, seq_len),
        causal_score_flops=lambda model, seq_len: 2 * _product(model, seq_len),
        products=lambda model, seq_len: (_product(model, seq_len), _product(model, seq_len)),
        keys_read_per_query=_keys,
        # Further tokens add nothing to the state.
        cached=lambda model: 0,
        state_bytes=lambda model, tokens, tp, element_bytes: _state(model, tokens, tp) * element_bytes,
        decode_reads=lambda model, tokens: _state(model, tokens, 1),
        decode_flops=lambda model, tokens: 4 * model.heads * model.head_dim * _seen(model, tokens),
    ),
    cache_choices=None,
    # Once a class of transformers computes the same: "efficientbench.export.gqa:EXPORTER".
    exporter=None,
    exportable=None,
    hidden_at=_hidden_at,
    # The tiny models of check-variant, whose sequences are longer than the windows.
    tiny=("model.attention.window=8",),
    further={"two tokens": ("model.attention.window=2",)},
)
