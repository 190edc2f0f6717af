"""Declaration of Mamba-2: its keys, and its formulas beside those of all recurrent layers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from efficientbench.architecture.recurrent import (
    CHUNK,
    RecurrentConfig,
    between,
    recurrent,
    recurrent_costs,
    recurrent_variant,
)
from efficientbench.architecture.variant import Decoder
from efficientbench.basics.part import PositiveInt, require


class Mamba2Config(RecurrentConfig):
    """Mamba-2 (arXiv 2405.21060), as in Bamba, Nemotron-H and Granite 4: a state of constant size instead of a cache.

    Its names there: key heads are groups, queries C, keys B, values x; a key is as wide as the state.
    """

    title: ClassVar[str] = "Mamba-2"
    scalars: ClassVar[int] = 1

    kind: Literal["mamba2"] = Field(default="mamba2", description="attention variant")
    key_heads: PositiveInt = Field(default=1, description="heads of queries and keys (groups)")
    key_dim: PositiveInt = Field(default=128, description="width of a query or key head (state)")
    value_dim: PositiveInt = Field(default=64, description="width of a value head")
    inner_size: PositiveInt = Field(description="width of all values together; 2 · hidden_size unless set")

    @classmethod
    def proportions(cls, hidden_size: int, head_dim: int) -> dict[str, int]:
        """Return the default width of the values on a backbone of this hidden size."""
        return {"inner_size": 2 * hidden_size}

    @property
    def heads(self) -> int:
        """Number of value heads."""
        return self.inner_size // self.value_dim

    @model_validator(mode="after")
    def _heads_fit(self) -> Mamba2Config:
        width = self.key_heads * self.value_dim
        require(
            (
                self.inner_size % width == 0,
                f"inner_size {self.inner_size} is not a multiple of key_heads · value_dim, {self.key_heads} · "
                f"{self.value_dim} = {width}",
            )
        )
        return self


def _vectors(model: Decoder) -> int:
    """Count the convolution's bias; A_log, dt_bias and D; and the norm."""
    mamba = recurrent(model)
    return mamba.convolved + 3 * mamba.heads + (mamba.outputs if model.norm_weights else 0)


def _computed(model: Decoder, seq_len: int) -> tuple[int, int]:
    """Count forward FLOPs per token as computed in chunks, the last one filled.

    Queries with keys, once for a key head; queried and learned states; and the products of the chunk's queries with its
    values. What the last chunk learns is left out: no token reads it, and no gradient comes from it.
    """
    mamba, size = recurrent(model), min(CHUNK, seq_len)
    filled = -(-seq_len // size) * size
    of_keys = (2 * size * mamba.key_heads * mamba.key_dim + 2 * mamba.state) * filled
    of_values = 2 * size * mamba.outputs * filled + 2 * mamba.state * (filled - size)
    return of_keys // seq_len, of_values // seq_len


def _saved(model: Decoder, tp: int) -> int:
    """Count the elements per token that one rank keeps from forward to backward, in 16 bits: float32 counts twice.

    Around the recurrence: what is projected; the convolution's input, sum and result; output, gate, product, normed.
    Within it, in float32: queries, keys and values; fading and products of each chunk; faded queries and keys; and a
    state for each chunk, twice.
    """
    mamba = recurrent(model)
    keys, values, repeated = mamba.key_heads * mamba.key_dim, mamba.outputs, mamba.heads * mamba.key_dim
    narrow = between(model) + 3 * mamba.convolved + 4 * values
    wide = 2 * keys + 2 * repeated + values + CHUNK * (2 * mamba.heads + mamba.key_heads) + 6 * mamba.heads
    return (narrow + 2 * (wide + 2 * mamba.state // CHUNK)) // tp


VARIANT = recurrent_variant(
    Mamba2Config,
    # What a query recalls, and what is learned. As in Gated DeltaNet, that a state fades is not counted.
    recurrent_costs(recurrence=(2, 2), vectors=_vectors, computed=_computed, saved=_saved),
    exportable="Mamba-2 beside GQA without qk_norm and gates",
    tiny=("model.attention.key_heads=2", "model.attention.key_dim=16", "model.attention.value_dim=12"),
)
