"""Declaration of Gated DeltaNet: its keys, and its formulas beside those of all recurrent layers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from efficientbench.architecture.recurrent import (
    CHUNK,
    RecurrentConfig,
    between,
    head_norm,
    recurrent,
    recurrent_costs,
    recurrent_variant,
)
from efficientbench.architecture.variant import Decoder
from efficientbench.basics.part import PositiveInt, require


class GDNConfig(RecurrentConfig):
    """Gated DeltaNet (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5: a state of constant size instead of a cache.

    Widths that are not set follow the backbone's (`proportions`): values as wide as the hidden states, keys half.
    """

    title: ClassVar[str] = "Gated DeltaNet"
    scalars: ClassVar[int] = 2

    kind: Literal["gdn"] = Field(default="gdn", description="attention variant")
    key_heads: PositiveInt = Field(description="heads of queries and keys; hidden_size / (2 · head_dim) unless set")
    value_heads: PositiveInt | None = Field(
        default=None, description="heads of values, each with a state; a multiple of key_heads; unset: as many"
    )
    key_dim: PositiveInt = Field(description="width of a query or key head; head_dim unless set")
    value_dim: PositiveInt = Field(description="width of a value head; 2 · head_dim unless set")

    @classmethod
    def proportions(cls, hidden_size: int, head_dim: int) -> dict[str, int]:
        """Return the default heads and widths on a backbone of this hidden size and head dimension."""
        heads = max(hidden_size // max(2 * head_dim, 1), 1)
        return {"key_heads": heads, "key_dim": head_dim, "value_dim": 2 * head_dim}

    @property
    def heads(self) -> int:
        """Number of value heads."""
        return self.value_heads or self.key_heads

    @model_validator(mode="after")
    def _heads_fit(self) -> GDNConfig:
        require(
            (
                self.heads % self.key_heads == 0,
                f"value_heads {self.heads} is not a multiple of key_heads {self.key_heads}",
            )
        )
        return self


def _computed(model: Decoder, seq_len: int) -> tuple[int, int]:
    """Count forward FLOPs per token as computed in chunks, the last one filled.

    Keys with keys and queries with keys, once for a key head; the triangular system; recalled, queried and learned
    states; and the products of the chunk's queries with what it learned.
    """
    gdn, size = recurrent(model), min(CHUNK, seq_len)
    of_keys = 4 * size * gdn.key_heads * gdn.key_dim + size * gdn.heads * gdn.key_dim + 4 * gdn.state
    of_values = 3 * size * gdn.outputs + 2 * gdn.state
    filled = -(-seq_len // size) * size
    return of_keys * filled // seq_len, of_values * filled // seq_len


def _saved(model: Decoder, tp: int) -> int:
    """Count the elements per token that one rank keeps from forward to backward, in 16 bits: float32 counts twice.

    Around the rule: what is projected; the convolution's input, sum and result; output, normed, gate, product. Within
    it, in float32: queries and keys before and behind their norm, values; fading and products of each chunk; what is
    learned, recalled and kept; and a state for each chunk, twice.
    """
    gdn = recurrent(model)
    keys, values, repeated = gdn.key_heads * gdn.key_dim, gdn.outputs, gdn.heads * gdn.key_dim
    narrow = between(model) + 3 * gdn.convolved + 3 * values
    wide = 4 * keys + 3 * repeated + 4 * values + CHUNK * (4 * gdn.heads + 2 * gdn.key_heads) + 8 * gdn.heads
    return (narrow + 2 * (wide + 2 * gdn.state // CHUNK)) // tp


VARIANT = recurrent_variant(
    GDNConfig,
    recurrent_costs(
        # What a key recalls and what a query recalls, and what is learned.
        recurrence=(4, 2),
        # A_log, dt_bias and the norm.
        vectors=lambda model: 2 * recurrent(model).heads + head_norm(model),
        computed=_computed,
        saved=_saved,
        shared=head_norm,
    ),
    exportable="Gated DeltaNet beside GQA that has gates and qk_norm, with norm_weights=zero_centred",
    further={"two values for a key": ("model.attention.value_heads=4", "model.attention.value_dim=12")},
)
