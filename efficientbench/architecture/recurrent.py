"""The declarations of recurrent layers: keys, formulas and support that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from pydantic import Field

from efficientbench.architecture.variant import AttentionConfig, AttentionCosts, AttentionVariant, Decoder, Stack
from efficientbench.basics.part import PositiveInt

CHUNK = 64
"""Tokens that the kernels compute together (model/kernels/recurrence.py, and fla-core's)."""
FLOAT32_BYTES = 4


class RecurrentConfig(AttentionConfig):
    """The keys of a recurrent layer, which has a state of constant size instead of a cache."""

    title: ClassVar[str]
    """Its name in messages."""
    scalars: ClassVar[int]
    """Numbers that the projection gives each value head for a token: its decay or step, and other strengths."""

    key_heads: PositiveInt
    key_dim: PositiveInt
    value_dim: PositiveInt
    convolution: int = Field(default=4, ge=2, description="latest tokens that the short convolution joins")

    @property
    def heads(self) -> int:
        """Number of value heads, each of which has a state."""
        raise NotImplementedError

    @property
    def decays(self) -> int:
        """Decays of a head for a token: one, or one for each channel of its key."""
        return 1

    @property
    def outputs(self) -> int:
        """Width of all values together."""
        return self.heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.outputs

    @property
    def state(self) -> int:
        """Elements of the heads' states."""
        return self.heads * self.key_dim * self.value_dim


def recurrent(model: Decoder) -> RecurrentConfig:
    """Return the keys of a view whose layers are recurrent."""
    assert isinstance(model.attention, RecurrentConfig)
    return model.attention


def head_norm(model: Decoder) -> int:
    """Count the weights of a norm over one head's values that all heads share."""
    return recurrent(model).value_dim if model.norm_weights else 0


def between(model: Decoder) -> int:
    """Count the elements per token of the first projection's output, and of what enters the last one."""
    keys = recurrent(model)
    return keys.convolved + 2 * keys.outputs + keys.scalars * keys.heads


def _projections(model: Decoder) -> int:
    """Count the weights of the projections to queries, keys, values, gates and scalars, and to the output."""
    return model.hidden_size * between(model)


def _state_bytes(model: Decoder, tokens: int, tp: int, element_bytes: int) -> int:
    """Count the states in float32, and the latest inputs of the convolution."""
    keys = recurrent(model)
    return (keys.state * FLOAT32_BYTES + keys.convolved * (keys.convolution - 1) * element_bytes) // tp


def recurrent_costs(
    recurrence: tuple[int, int],
    vectors: Callable[[Decoder], int],
    computed: Callable[[Decoder, int], tuple[int, int]],
    saved: Callable[[Decoder, int], int],
    shared: Callable[[Decoder], int] = lambda model: 0,
) -> AttentionCosts:
    """Return the formulas of a recurrent layer.

    Args:
        recurrence: forward FLOPs for a token and an element of the state: of keys and queries, and of what is learned.
        vectors: parameters beside the projections and the weights of the convolution.
        computed: as `AttentionCosts.computed_products`.
        saved: as `AttentionCosts.saved`.
        shared: parameters that all heads share, whose gradient tensor-parallel ranks sum.
    """

    def products(model: Decoder, seq_len: int) -> tuple[int, int]:
        of_keys, of_values = recurrence
        return of_keys * recurrent(model).state, of_values * recurrent(model).state

    def flops(model: Decoder, seq_len: int) -> int:
        return sum(products(model, seq_len))

    def parameters(model: Decoder) -> int:
        keys = recurrent(model)
        return _projections(model) + keys.convolved * keys.convolution + vectors(model)

    return AttentionCosts(
        parameters=parameters,
        projection_flops=lambda model: 2 * _projections(model),
        # No key of an earlier token is read: there is no square, and nothing that a mask hides.
        score_flops=flops,
        causal_score_flops=flops,
        products=products,
        computed_products=computed,
        keys_read_per_query=lambda model, seq_len: 0.0,
        cached=lambda model: 0,
        state_bytes=_state_bytes,
        # All of it is read, and written back.
        decode_bytes=lambda model, tokens, element_bytes: 2 * _state_bytes(model, tokens, 1, element_bytes),
        decode_flops=flops,
        saved=saved,
        recomputed=lambda model, tp: saved(model, tp) - between(model) // tp,
        column_inputs=lambda model: (model.hidden_size,),
        replicated_parameters=shared,
        summed_by_micro_batch=shared,
    )


def _uneven(model: Decoder, tp: int) -> list[str]:
    keys = recurrent(model)
    if keys.key_heads % tp == 0:
        return []
    return [
        f"parallel.tp: {tp} does not divide the {keys.key_heads} key heads (model.attention.key_heads): "
        f"tensor-parallel ranks of {keys.title} hold whole heads"
    ]


def _matrices(model: Decoder) -> dict[str, Stack]:
    """Return what lies together for each key head: query, key, values, gates and scalars; and the output."""
    keys = recurrent(model)
    repeats = keys.heads // keys.key_heads
    values = repeats * keys.value_dim
    heights = (keys.key_dim, keys.key_dim, values, values, *[repeats] * keys.scalars)
    return {
        "linear_in.weight": Stack(model.hidden_size, heights, repeats=keys.key_heads),
        "linear_proj.weight": Stack(keys.outputs, (model.hidden_size,)),
    }


def recurrent_variant(
    config: type[RecurrentConfig],
    costs: AttentionCosts,
    exportable: str,
    tiny: tuple[str, ...] = (),
    further: Mapping[str, tuple[str, ...]] | None = None,
    matrices: Callable[[Decoder], dict[str, Stack]] = _matrices,
) -> AttentionVariant:
    """Return the declaration of a recurrent layer. Its code and its exporter are in files of its kind's name."""
    kind, title = config.model_fields["kind"].default, config.title
    return AttentionVariant(
        config=config,
        layer=f"efficientbench.model.attention.{kind}:spec",
        costs=costs,
        places=frozenset({"nothing"}),
        other_positions=f"position.kind: {title} has no positions but the order of its recurrence, not {{position!r}}: "
        "set model.position.kind to {taken}, or in a pattern model.kinds.NAME.position.kind",
        kernels=f"efficientbench.model.kernels.recurrent:{kind.upper()}",
        may_differ=("recurrence", "fla-core times its kernels' tiles, whose size decides in which order they add"),
        matrices=matrices,
        tensor_parallel=_uneven,
        within_documents=(),
        selective_recomputation=True,
        profiled_as=("Recurrence",),
        exporter=f"efficientbench.export.{kind}:EXPORTER",
        exportable=exportable,
        # More than one chunk, the last not full.
        tiny=(f"training.seq_len={CHUNK + 8}", *tiny),
        further=further or {},
        ratios=lambda model: (
            recurrent(model).value_dim / recurrent(model).key_dim,
            recurrent(model).outputs / model.hidden_size,
        ),
    )
