"""Declaration of Gated DeltaNet: keys, formulas, and what it supports.

G = key heads, N = value heads, K and V = widths of a key and a value, c = tokens of the short convolution.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from efficientbench.architecture.variant import AttentionConfig, AttentionCosts, AttentionVariant, Decoder, Stack
from efficientbench.basics.part import PositiveInt, require

CHUNK = 64
"""Tokens that the kernel computes together (model/kernels/gated_delta_rule.py)."""
FLOAT32_BYTES = 4


class GDNConfig(AttentionConfig):
    """Gated DeltaNet (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5: a state of constant size instead of a cache.

    Widths that are not set follow the backbone's (`proportions`): values as wide as the hidden states, keys half.
    """

    kind: Literal["gdn"] = Field(default="gdn", description="attention variant")
    key_heads: PositiveInt = Field(description="heads of queries and keys; hidden_size / (2 · head_dim) unless set")
    value_heads: PositiveInt | None = Field(
        default=None, description="heads of values, each with a state; a multiple of key_heads; unset: as many"
    )
    key_dim: PositiveInt = Field(description="width of a query or key head; head_dim unless set")
    value_dim: PositiveInt = Field(description="width of a value head; 2 · head_dim unless set")
    convolution: int = Field(default=4, ge=2, description="latest tokens that the short convolution joins")

    @classmethod
    def proportions(cls, hidden_size: int, head_dim: int) -> dict[str, int]:
        """Return the default heads and widths on a backbone of this hidden size and head dimension."""
        heads = max(hidden_size // max(2 * head_dim, 1), 1)
        return {"key_heads": heads, "key_dim": head_dim, "value_dim": 2 * head_dim}

    @property
    def heads(self) -> int:
        """Number of value heads."""
        return self.value_heads or self.key_heads

    @property
    def convolved(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @model_validator(mode="after")
    def _heads_fit(self) -> GDNConfig:
        require(
            (
                self.heads % self.key_heads == 0,
                f"value_heads {self.heads} is not a multiple of key_heads {self.key_heads}",
            )
        )
        return self


def _gdn(model: Decoder) -> GDNConfig:
    assert isinstance(model.attention, GDNConfig)
    return model.attention


def _outputs(model: Decoder) -> int:
    return _gdn(model).heads * _gdn(model).value_dim


def _projections(model: Decoder) -> int:
    """Count the weights of the projections to queries, keys, values, gates, strengths, decays, and to the output."""
    return model.hidden_size * (_gdn(model).convolved + 2 * _outputs(model) + 2 * _gdn(model).heads)


def _shared(model: Decoder) -> int:
    """Count the weights of the norm that all heads share."""
    return _gdn(model).value_dim if model.norm_weights else 0


def _parameters(model: Decoder) -> int:
    """Count projections, convolution, A_log, dt_bias and norm."""
    gdn = _gdn(model)
    return _projections(model) + gdn.convolved * gdn.convolution + 2 * gdn.heads + _shared(model)


def _state(model: Decoder) -> int:
    """Count the elements of the heads' states."""
    return _gdn(model).heads * _gdn(model).key_dim * _gdn(model).value_dim


def _recurrence(model: Decoder) -> int:
    """Count forward FLOPs per token of the recurrence: what a key recalls, what it learns, what a query recalls."""
    return 6 * _state(model)


def _products(model: Decoder, seq_len: int) -> tuple[int, int]:
    """Count the recurrence's FLOPs per token: those of keys and queries, and those of what is learned."""
    return 4 * _state(model), 2 * _state(model)


def _computed(model: Decoder, seq_len: int) -> tuple[int, int]:
    """Count forward FLOPs per token as computed in chunks, the last one filled.

    Keys with keys and queries with keys, once for a key head; the triangular system; recalled, queried and learned
    states; and the products of the chunk's queries with what it learned.
    """
    gdn, size = _gdn(model), min(CHUNK, seq_len)
    of_keys = 4 * size * gdn.key_heads * gdn.key_dim + size * gdn.heads * gdn.key_dim + 4 * _state(model)
    of_values = 3 * size * _outputs(model) + 2 * _state(model)
    filled = -(-seq_len // size) * size
    return of_keys * filled // seq_len, of_values * filled // seq_len


def _state_bytes(model: Decoder, tokens: int, tp: int, element_bytes: int) -> int:
    """Count the states in float32, and the latest inputs of the convolution."""
    gdn = _gdn(model)
    return (_state(model) * FLOAT32_BYTES + gdn.convolved * (gdn.convolution - 1) * element_bytes) // tp


def _between(model: Decoder) -> int:
    """Count the elements per token of the projections' output, and of what enters the last one."""
    gdn = _gdn(model)
    return gdn.convolved + 2 * _outputs(model) + 2 * gdn.heads


def _saved(model: Decoder, tp: int) -> int:
    """Count the elements per token that one rank keeps from forward to backward, in 16 bits: float32 counts twice.

    Around the rule: what is projected; the convolution's input, sum and result; output, normed, gate, product. Within
    it, in float32: queries and keys before and behind their norm, values; fading and products of each chunk; what is
    learned, recalled and kept; and a state for each chunk, twice.
    """
    gdn = _gdn(model)
    keys, values, repeated = gdn.key_heads * gdn.key_dim, _outputs(model), gdn.heads * gdn.key_dim
    narrow = _between(model) + 3 * gdn.convolved + 3 * values
    wide = 4 * keys + 3 * repeated + 4 * values + CHUNK * (4 * gdn.heads + 2 * gdn.key_heads) + 8 * gdn.heads
    return (narrow + 2 * (wide + 2 * _state(model) // CHUNK)) // tp


def _uneven(model: Decoder, tp: int) -> list[str]:
    heads = _gdn(model).key_heads
    if heads % tp == 0:
        return []
    return [
        f"parallel.tp: {tp} does not divide the {heads} key heads (model.attention.key_heads): tensor-parallel ranks "
        "of Gated DeltaNet hold whole heads"
    ]


def _matrices(model: Decoder) -> dict[str, Stack]:
    """Return what lies together for each key head: query, key, values, gates, strengths and decays; and the output."""
    gdn = _gdn(model)
    repeats = gdn.heads // gdn.key_heads
    values = repeats * gdn.value_dim
    heights = (gdn.key_dim, gdn.key_dim, values, values, repeats, repeats)
    return {
        "linear_in.weight": Stack(model.hidden_size, heights, repeats=gdn.key_heads),
        "linear_proj.weight": Stack(_outputs(model), (model.hidden_size,)),
    }


VARIANT = AttentionVariant(
    config=GDNConfig,
    layer="efficientbench.model.attention.gdn:spec",
    costs=AttentionCosts(
        parameters=_parameters,
        projection_flops=lambda model: 2 * _projections(model),
        # No key of an earlier token is read: there is no square, and nothing that a mask hides.
        score_flops=lambda model, seq_len: _recurrence(model),
        causal_score_flops=lambda model, seq_len: _recurrence(model),
        products=_products,
        computed_products=_computed,
        keys_read_per_query=lambda model, seq_len: 0.0,
        cached=lambda model: 0,
        state_bytes=_state_bytes,
        # All of it is read, and written back.
        decode_bytes=lambda model, tokens, element_bytes: 2 * _state_bytes(model, tokens, 1, element_bytes),
        decode_flops=lambda model, tokens: _recurrence(model),
        saved=_saved,
        recomputed=lambda model, tp: _saved(model, tp) - _between(model) // tp,
        column_inputs=lambda model: (model.hidden_size,),
        replicated_parameters=_shared,
        replicated_summed="in a micro-batch",
    ),
    places=frozenset({"nothing"}),
    other_positions="position.kind: Gated DeltaNet has no positions but the order of its recurrence, not "
    "{position!r}: set model.position.kind to {taken}, or in a pattern model.kinds.NAME.position.kind",
    kernels="efficientbench.model.kernels.gdn:KERNELS",
    matrices=_matrices,
    tensor_parallel=_uneven,
    within_documents=(),
    selective_recomputation=True,
    profiled_as=("GatedDeltaRule",),
    exporter="efficientbench.export.gdn:EXPORTER",
    exportable="Gated DeltaNet beside GQA that has gates and qk_norm, with norm_weights=zero_centred",
    # More than one chunk, the last not full.
    tiny=(f"training.seq_len={CHUNK + 8}",),
    further={"two values for a key": ("model.attention.value_heads=4", "model.attention.value_dim=12")},
    ratios=lambda model: (_gdn(model).value_dim / _gdn(model).key_dim, _outputs(model) / model.hidden_size),
)
