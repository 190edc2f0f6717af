"""Declaration of grouped-query attention: keys, formulas, and what it supports."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from efficientbench.architecture.variant import (
    AttentionConfig,
    AttentionCosts,
    AttentionVariant,
    Decoder,
    Stack,
    group_choices,
)
from efficientbench.basics.part import PositiveInt


class GQAConfig(AttentionConfig):
    """Grouped-query attention (arXiv 2305.13245); one group is MQA, as many groups as heads is MHA."""

    later_keys: ClassVar[tuple[str, ...]] = ("window", "sinks", "gate")

    kind: Literal["gqa"] = Field(default="gqa", description="attention variant")
    query_groups: PositiveInt = Field(
        default=2,
        description="key/value heads; each serves heads / query_groups query heads; heads: as many as those (MHA)",
    )
    qkv_bias: bool = Field(default=True, description="bias on the Q, K and V projections, as in Qwen2.5")
    window: PositiveInt | None = Field(
        default=None,
        description="keys that a query sees, its own and those before it (arXiv 2004.05150); unset: all before it",
    )
    sinks: bool | None = Field(
        default=None,
        description="a trained score for each head that takes a share of its softmax and reads nothing (arXiv "
        "2508.10925); unset: none",
    )
    gate: bool | None = Field(
        default=None,
        description="multiply each head's output by the sigmoid of a projection as wide as the queries (arXiv "
        "2505.06708); unset: no gate",
    )

    @property
    def own_kernel(self) -> bool:
        """Whether the scores are no plain causal attention's: a window or sinks have a kernel of their own."""
        return self.window is not None or bool(self.sinks)

    @property
    def engine_output_gate(self) -> bool:
        return bool(self.gate)

    def key_value_heads(self, heads: int) -> int:
        return self.query_groups

    @property
    def engine_qkv_bias(self) -> bool:
        return self.qkv_bias


def gqa_keys(model: Decoder) -> GQAConfig:
    """Return the keys of a view whose layers are GQA."""
    assert isinstance(model.attention, GQAConfig)
    return model.attention


def _qkv(model: Decoder) -> int:
    """Return the width of queries, gates, keys and values."""
    gates = model.heads if gqa_keys(model).gate else 0
    return (model.heads + gates + 2 * gqa_keys(model).query_groups) * model.head_dim


def _parameters(model: Decoder) -> int:
    bias = _qkv(model) if gqa_keys(model).qkv_bias else 0
    sinks = model.heads if gqa_keys(model).sinks else 0
    return (_qkv(model) + model.heads * model.head_dim) * model.hidden_size + bias + sinks


def _key(model: Decoder, tp: int) -> int:
    return max(gqa_keys(model).query_groups // tp, 1) * model.head_dim


def _saved(model: Decoder, tp: int) -> int:
    """Count QKV (the values are a view of it), rotated queries and keys, and the output; gated, also the gates' part.

    Without rotation it is a little less, since the keys are a view too.
    """
    groups = max(gqa_keys(model).query_groups // tp, 1)
    heads = model.heads // tp
    # The kernel of a window or of sinks keeps values and output in an order of its own.
    ordered = heads + groups if gqa_keys(model).own_kernel else 0
    # The gates in QKV, their sigmoids, and the product.
    gated = 3 * heads if gqa_keys(model).gate else 0
    return ((heads + 2 * groups) + (heads + groups) + heads + ordered + gated) * model.head_dim


def _seen(model: Decoder, tokens: int) -> int:
    """Return how many keys the last of so many tokens sees."""
    return min(tokens, gqa_keys(model).window or tokens)


def _keys_per_query(model: Decoder, seq_len: int) -> float:
    """Return the mean number of keys: the first queries of a window see fewer, as all do without one."""
    seen = _seen(model, seq_len)
    return (seq_len + 1) / 2 if seen == seq_len else seen - seen * (seen - 1) / (2 * seq_len)


def _product(model: Decoder, seq_len: int) -> int:
    """Count forward FLOPs per token in the scores, or in their product with the values, over the keys in sight."""
    width, seen = model.heads * model.head_dim, _seen(model, seq_len)
    # A full square is halved, as everywhere; a window has its exact number of keys.
    return width * seq_len if seen == seq_len else width * (2 * seen * seq_len - seen * (seen - 1)) // seq_len


def _hidden_at(model: Decoder, seq_len: int) -> str | None:
    window = gqa_keys(model).window
    if window is None or window < seq_len:
        return None
    return (
        f"a window of {window:,} tokens holds all {seq_len:,} of a sequence: set model.attention.window below "
        f"{seq_len:,}, or training.seq_len above {window:,}"
    )


def _uneven(model: Decoder, tp: int) -> list[str]:
    groups = gqa_keys(model).query_groups
    if groups == model.heads:
        return []
    if groups % tp and tp % groups:
        return [
            f"parallel.tp: {tp} is neither a divisor nor a multiple of the {groups} query groups "
            "(model.attention.query_groups)"
        ]
    if 2 * groups * model.head_dim % tp:
        return [f"parallel.tp: {tp} does not divide the key and value widths 2 × {groups} × {model.head_dim}"]
    return []


def _gathered_heads(model: Decoder, tp: int) -> int:
    """Count all queries, keys and values: with more ranks than groups, every rank gathers them and takes its own."""
    return _qkv(model) if tp > gqa_keys(model).query_groups else 0


def _matrices(model: Decoder) -> dict[str, Stack]:
    """Return Q, the gates, K and V, which lie group by group, and the output projection."""
    groups, dim = gqa_keys(model).query_groups, model.head_dim
    queries = (model.heads // groups * dim,) * (2 if gqa_keys(model).gate else 1)
    return {
        "linear_qkv.weight": Stack(model.hidden_size, (*queries, dim, dim), repeats=groups),
        "linear_proj.weight": Stack(model.heads * dim, (model.hidden_size,)),
    }


VARIANT = AttentionVariant(
    config=GQAConfig,
    layer="efficientbench.model.attention.gqa:spec",
    costs=AttentionCosts(
        parameters=_parameters,
        projection_flops=lambda model: 2 * model.hidden_size * (_qkv(model) + model.heads * model.head_dim),
        score_flops=lambda model, seq_len: 4 * model.heads * model.head_dim * _seen(model, seq_len),
        causal_score_flops=lambda model, seq_len: 2 * _product(model, seq_len),
        products=lambda model, seq_len: (_product(model, seq_len), _product(model, seq_len)),
        keys_read_per_query=_keys_per_query,
        # A window keeps no more for further tokens.
        cached=lambda model: 0 if gqa_keys(model).window else 2 * _key(model, 1),
        state_bytes=lambda model, tokens, tp, element_bytes: 2 * _key(model, tp) * _seen(model, tokens) * element_bytes,
        decode_reads=lambda model, tokens: 2 * _key(model, 1) * _seen(model, tokens),
        decode_flops=lambda model, tokens: 4 * model.heads * model.head_dim * _seen(model, tokens),
        saved=_saved,
        recomputed=_key,
        gathered=lambda model, tp: 2 * _key(model, tp),
        exchanged=lambda model, tp: 2 * _key(model, tp),
        column_inputs=lambda model: (model.hidden_size,),
        replicated_parameters=lambda model: 0,
        gathered_heads=_gathered_heads,
    ),
    places=frozenset({"nothing", "embedding", "queries and keys", "scores"}),
    qk_norm=True,
    plain_scores=lambda model: None if gqa_keys(model).own_kernel else (model.head_dim, model.head_dim),
    kernels="efficientbench.model.kernels.window_attention:KERNELS",
    matrices=_matrices,
    cache_choices=group_choices,
    tensor_parallel=_uneven,
    context_parallel=True,
    within_documents=(),
    selective_recomputation=True,
    hidden_at=_hidden_at,
    exporter="efficientbench.export.gqa:EXPORTER",
    exportable="GQA and MQA with rope, with experts or without, with qk_norm or without; without experts also with "
    "windows of one width and, without qk_norm, with no positions, in some layers or in all, and with sinks in all",
    further={"one group": ("model.attention.query_groups=1",)},
)
