"""Declaration of Kimi Delta Attention: its keys, and its formulas beside those of all recurrent layers."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from pydantic import Field

from efficientbench.architecture.recurrent import (
    CHUNK,
    RecurrentConfig,
    head_norm,
    recurrent,
    recurrent_costs,
    recurrent_variant,
)
from efficientbench.architecture.variant import Decoder, Stack
from efficientbench.basics.part import PositiveInt

BLOCK = 8
"""Tokens of a chunk for each pair of which the kernel writes out what fades (model/kernels/recurrence.py)."""


class KDAConfig(RecurrentConfig):
    """Kimi Delta Attention (arXiv 2510.26692), as in Kimi Linear: Gated DeltaNet with a decay for a key's each channel.

    Widths that are not set follow the backbone's (`proportions`): together the heads are as wide as the hidden states.
    """

    title: ClassVar[str] = "Kimi Delta Attention"
    scalars: ClassVar[int] = 1

    kind: Literal["kda"] = Field(default="kda", description="attention variant")
    key_heads: PositiveInt = Field(description="heads, each with a state; hidden_size / head_dim unless set")
    key_dim: PositiveInt = Field(
        description="width of a query or key head, and of what decays and gates are projected from; head_dim unless set"
    )
    value_dim: PositiveInt = Field(description="width of a value head; head_dim unless set")

    @classmethod
    def proportions(cls, hidden_size: int, head_dim: int) -> dict[str, int]:
        """Return the default heads and widths on a backbone of this hidden size and head dimension."""
        return {"key_heads": max(hidden_size // max(head_dim, 1), 1), "key_dim": head_dim, "value_dim": head_dim}

    @property
    def heads(self) -> int:
        """Number of heads; each has a key and a value."""
        return self.key_heads

    @property
    def decays(self) -> int:
        """Decays of a head for a token: one for each channel of its key."""
        return self.key_dim


def _keys(model: Decoder) -> int:
    """Count the channels of all keys together, each of which has a decay."""
    return recurrent(model).heads * recurrent(model).key_dim


def _low(model: Decoder) -> int:
    """Count the weights of the projection to what the gates of decays and outputs read, which all heads share."""
    return 2 * model.hidden_size * recurrent(model).key_dim


def _projections(model: Decoder) -> int:
    """Count the weights of the projections to queries, keys, values and strengths, to both gates, and to the output."""
    kda = recurrent(model)
    of_low = kda.key_dim * (_keys(model) + kda.outputs)
    return model.hidden_size * (kda.convolved + kda.heads + kda.outputs) + _low(model) + of_low


def _convolution(model: Decoder) -> int:
    return recurrent(model).convolved * recurrent(model).convolution


def _vectors(model: Decoder) -> int:
    """Count A_log, dt_bias and the norm."""
    return recurrent(model).heads * (1 + recurrent(model).decays) + head_norm(model)


def _computed(model: Decoder, seq_len: int) -> tuple[int, int]:
    """Count forward FLOPs per token as computed in chunks, the last one filled.

    Keys and queries with the keys of earlier blocks; the triangular system; recalled, queried and learned states; and
    the products of the chunk's queries with what it learned. What is written out within blocks is no matmul.
    """
    kda, size = recurrent(model), min(CHUNK, seq_len)
    of_keys = (2 * max(size - BLOCK, 0) + size) * _keys(model) + 4 * kda.state
    of_values = 3 * size * kda.outputs + 2 * kda.state
    filled = -(-seq_len // size) * size
    return of_keys * filled // seq_len, of_values * filled // seq_len


def _between(model: Decoder) -> int:
    """Count the elements per token that heads get from the projections, and give to the last one."""
    kda = recurrent(model)
    return kda.convolved + kda.heads + _keys(model) + 2 * kda.outputs


def _saved(model: Decoder, tp: int) -> int:
    """Count the elements per token that one rank keeps from forward to backward, in 16 bits: float32 counts twice.

    Around the rule: what gates read; what is projected, but for steps; the convolution's input, sum and result; output,
    normed, gate, product. Within it, in float32: queries and keys before and behind their norm, values; steps, decays,
    their sums and what these fade; products of each chunk; what is learned, recalled and kept; and a state for each
    chunk, twice. What fades within a chunk is computed again.
    """
    kda = recurrent(model)
    narrow = _between(model) - _keys(model) + 3 * kda.convolved + 3 * kda.outputs
    wide = 13 * _keys(model) + 4 * kda.outputs + 4 * (CHUNK + 1) * kda.heads
    return 2 * kda.key_dim + (narrow + 2 * (wide + 2 * kda.state // CHUNK)) // tp


def _matrices(model: Decoder) -> dict[str, Stack]:
    """Return what lies together for each head: query, key, value and strength; both gates' halves; and the output."""
    kda, hidden = recurrent(model), model.hidden_size
    return {
        "linear_in.weight": Stack(hidden, (kda.key_dim, kda.key_dim, kda.value_dim, 1), repeats=kda.heads),
        "linear_low.weight": Stack(hidden, (kda.key_dim, kda.key_dim), split=False),
        "linear_decay.weight": Stack(kda.key_dim, (_keys(model),)),
        "linear_gate.weight": Stack(kda.key_dim, (kda.outputs,)),
        "linear_proj.weight": Stack(kda.outputs, (hidden,)),
    }


VARIANT = recurrent_variant(
    KDAConfig,
    dataclasses.replace(
        recurrent_costs(
            # What a key recalls and what a query recalls, and what is learned.
            recurrence=(4, 2),
            vectors=_vectors,
            computed=_computed,
            saved=_saved,
            shared=head_norm,
        ),
        parameters=lambda model: _projections(model) + _vectors(model) + _convolution(model),
        projection_flops=lambda model: 2 * _projections(model),
        recomputed=lambda model, tp: _saved(model, tp) - 2 * recurrent(model).key_dim - _between(model) // tp,
        column_inputs=lambda model: (model.hidden_size, recurrent(model).key_dim, recurrent(model).key_dim),
        replicated_parameters=lambda model: _low(model) + head_norm(model),
    ),
    exportable="Kimi Delta Attention beside MLA without positions, without experts, or with experts scored by sigmoids",
    matrices=_matrices,
)
