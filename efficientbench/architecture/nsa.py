"""Declaration of Native Sparse Attention (arXiv 2502.11089): keys, formulas, and what it supports.

D = head dimension; l, d, l', n, w = compress_block, compress_stride, select_block, select_count, window of the
configuration; φ = the network that compresses l keys or values to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from efficientbench.architecture.variant import (
    AttentionConfig,
    AttentionCosts,
    AttentionVariant,
    Decoder,
    Stack,
    group_choices,
)
from efficientbench.basics.part import PositiveInt, require

BRANCHES = 3
"""Number of branches: compressed, selected, window, the order of their keys, values and gates."""


class NSAConfig(AttentionConfig):
    """Native Sparse Attention (arXiv 2502.11089): compressed tokens, selected blocks and a sliding window, gated."""

    kind: Literal["nsa"] = Field(default="nsa", description="attention variant")
    query_groups: PositiveInt = Field(
        default=2, description="key/value heads; each serves heads / query_groups query heads"
    )
    qkv_bias: bool = Field(default=True, description="bias on the Q, K and V projections, as in Qwen2.5")
    compress_block: PositiveInt = Field(default=32, description="tokens that one compressed key stands for (l)")
    compress_stride: PositiveInt = Field(
        default=16, description="tokens from one compressed key's start to the next (d)"
    )
    select_block: PositiveInt = Field(default=64, description="tokens in a block of the selected branch (l')")
    select_count: PositiveInt = Field(
        default=16, description="blocks that a query reads, with the first and two local ones (n)"
    )
    window: PositiveInt = Field(default=512, description="tokens in the sliding window, with the query's own (w)")

    def key_value_heads(self, heads: int) -> int:
        return self.query_groups

    @model_validator(mode="after")
    def _blocks_fit(self) -> NSAConfig:
        stride = self.compress_stride
        require(
            (
                self.compress_block % stride == 0,
                f"compress_block {self.compress_block} is not a multiple of compress_stride {stride}",
            ),
            (
                self.select_block % stride == 0,
                f"select_block {self.select_block} is not a multiple of compress_stride {stride}",
            ),
            (
                self.compress_block <= self.select_block,
                f"compress_block {self.compress_block} must not be above select_block {self.select_block}",
            ),
            (
                self.select_count >= 3,
                f"select_count {self.select_count} leaves no room for the first and two local blocks: 3 or more",
            ),
        )
        return self


@dataclass(frozen=True)
class Keys:
    """Numbers of keys by branch."""

    compressed: int
    selected: int
    window: int

    @property
    def total(self) -> int:
        return self.compressed + self.selected + self.window


def nsa_keys(model: Decoder) -> NSAConfig:
    """Return the keys of a view whose layers are NSA."""
    assert isinstance(model.attention, NSAConfig)
    return model.attention


def _compressed_keys(nsa: NSAConfig, seq_len: int) -> int:
    """Count the compressed keys whose blocks lie within the first `seq_len` tokens."""
    return max((seq_len - nsa.compress_block) // nsa.compress_stride + 1, 0)


def keys_in_sight(nsa: NSAConfig, seq_len: int) -> Keys:
    """Count the keys that the masks show to the queries of a sequence, summed over the queries.

    In its own block a query sees no later token.
    """
    block, count = nsa.select_block, nsa.select_count
    return Keys(
        compressed=sum(_compressed_keys(nsa, length) for length in range(1, seq_len + 1)),
        selected=sum(min(length, (count - 1) * block + (length - 1) % block + 1) for length in range(1, seq_len + 1)),
        window=sum(min(length, nsa.window) for length in range(1, seq_len + 1)),
    )


def keys_read(nsa: NSAConfig, seq_len: int) -> Keys:
    """Count the keys that the queries of a sequence read, summed over queries: they read complete selected blocks."""
    sight = keys_in_sight(nsa, seq_len)
    blocks = (min((query // nsa.select_block) + 1, nsa.select_count) for query in range(seq_len))
    return Keys(sight.compressed, sum(blocks) * nsa.select_block, sight.window)


def keys_of_last_query(nsa: NSAConfig, seq_len: int) -> Keys:
    """Count the keys that the last query of a sequence reads."""
    blocks = -(-seq_len // nsa.select_block)
    return Keys(
        compressed=_compressed_keys(nsa, seq_len),
        selected=min(blocks, nsa.select_count) * nsa.select_block,
        window=min(nsa.window, seq_len),
    )


def kept_keys(nsa: NSAConfig, tokens: int) -> Keys:
    """Count by branch the keys that decoding keeps for a sequence with room for `tokens` tokens, in complete blocks."""
    return Keys(
        compressed=_compressed_keys(nsa, tokens),
        selected=-(-tokens // nsa.select_block) * nsa.select_block,
        window=min(nsa.window, tokens),
    )


def _qkv(model: Decoder) -> int:
    return (model.heads + 2 * BRANCHES * nsa_keys(model).query_groups) * model.head_dim


def _projections(model: Decoder) -> int:
    """Count the weights of the projections to queries, keys, values and gates, and to the output."""
    return model.hidden_size * (_qkv(model) + BRANCHES * model.heads + model.heads * model.head_dim)


def _compression_weights(model: Decoder) -> int:
    """Count the weights of one φ: l · D → D → D."""
    return (nsa_keys(model).compress_block + 1) * model.head_dim**2


def _compression_parameters(model: Decoder) -> int:
    """Count φ of keys and φ of values with their positions, which every tensor-parallel rank holds in full."""
    return 2 * (_compression_weights(model) + nsa_keys(model).compress_block * model.head_dim)


def _parameters(model: Decoder) -> int:
    """Count the parameters of a layer."""
    bias = _qkv(model) if nsa_keys(model).qkv_bias else 0
    return _projections(model) + bias + _compression_parameters(model)


def _compression_flops(model: Decoder, seq_len: int) -> int:
    """Count forward FLOPs per token in φ."""
    nsa = nsa_keys(model)
    blocks = max(_compressed_keys(nsa, seq_len), 1)
    return 2 * blocks * nsa.query_groups * 2 * _compression_weights(model) // seq_len


def _score_flops_full_square(model: Decoder, seq_len: int) -> int:
    """Count forward FLOPs per token in φ, scores and their product with the values over the full square.

    Every query then reads as many keys as the last one.
    """
    keys = keys_of_last_query(nsa_keys(model), seq_len).total
    return 4 * model.heads * model.head_dim * keys + _compression_flops(model, seq_len)


def _score_flops(model: Decoder, seq_len: int) -> int:
    """Count forward FLOPs per token in φ, scores and their product with the values, over the keys in sight."""
    keys = keys_in_sight(nsa_keys(model), seq_len).total
    return 4 * model.heads * model.head_dim * keys // seq_len + _compression_flops(model, seq_len)


def _cached(model: Decoder) -> int:
    """Count the elements by which decoding's cache grows with each token.

    The selected branch adds a key and a value for each token, the compressed branch one of each for d tokens. The
    window and the tokens of unfinished compressed blocks do not grow.
    """
    nsa = nsa_keys(model)
    return 2 * nsa.query_groups * model.head_dim * (nsa.compress_stride + 1) // nsa.compress_stride


def _state_bytes(model: Decoder, tokens: int, tp: int, element_bytes: int) -> int:
    """Count the bytes that decoding keeps of a sequence.

    Beside the branches' keys and values: a slot in two branches for discarded tokens, and the tokens that φ needs
    again. See model/attention/nsa_state.py.
    """
    nsa = nsa_keys(model)
    keys = kept_keys(nsa, tokens).total + 2 + nsa.compress_block - 1
    return 2 * keys * nsa.query_groups // tp * model.head_dim * element_bytes


def _decode_flops(model: Decoder, tokens: int) -> int:
    """Count FLOPs of a sequence's last token: over the keys that it reads, and in φ, which each token computes anew."""
    nsa = nsa_keys(model)
    compression = 2 * nsa.query_groups * 2 * _compression_weights(model)
    return 4 * model.heads * model.head_dim * keys_of_last_query(nsa, tokens).total + compression


def _decode_reads(model: Decoder, tokens: int) -> int:
    """Count the elements that the last of `tokens` queries reads: keys and values of its branches, and φ's tokens.

    In long sequences only the compressed keys grow with `tokens`. See model/attention/nsa_state.py.
    """
    nsa = nsa_keys(model)
    keys = keys_of_last_query(nsa, tokens).total + nsa.compress_block - 1
    return 2 * keys * nsa.query_groups * model.head_dim


def _saved(model: Decoder, tp: int) -> int:
    """Count the elements per token that one rank keeps from forward to backward, without the layer's input.

    Per head: rotated query, output of each branch, their gated sum, gates. Per group: keys and values of two branches;
    for the third the input blocks of φ, which overlap, its inner activations and its result; indices of selected
    blocks.
    """
    nsa, dim = nsa_keys(model), model.head_dim
    compression = 2 * dim * (nsa.compress_block + 3) // nsa.compress_stride
    per_head = (2 + BRANCHES) * dim + BRANCHES
    per_group = 4 * dim + compression + 4 * nsa.select_count
    return model.heads // tp * per_head + nsa.query_groups // tp * per_group


def _recomputed(model: Decoder, tp: int) -> int:
    """Count the elements of `saved` that selective recomputation computes again: branch outputs and block indices."""
    nsa = nsa_keys(model)
    return model.heads // tp * BRANCHES * model.head_dim + nsa.query_groups // tp * 4 * nsa.select_count


def _over(model: Decoder, keys: int, seq_len: int) -> tuple[int, int]:
    """Count forward FLOPs per token in scores, and in their product with the values, for `keys` keys in a sequence."""
    flops = 2 * model.heads * model.head_dim * keys // seq_len
    return flops, flops


def selected_score_flops(model: Decoder, seq_len: int) -> int:
    """Count forward FLOPs per token in the selected branch's scores."""
    return _over(model, keys_read(nsa_keys(model), seq_len).selected, seq_len)[0]


def _uneven(model: Decoder, tp: int) -> list[str]:
    groups = nsa_keys(model).query_groups
    if groups % tp == 0:
        return []
    return [
        f"parallel.tp: {tp} does not divide the {groups} query groups (model.attention.query_groups): "
        "tensor-parallel ranks of NSA hold whole groups"
    ]


def _matrices(model: Decoder) -> dict[str, Stack]:
    """Return Q and each branch's K and V, which lie group by group, the gates, the output, and both networks φ."""
    nsa, hidden, dim = nsa_keys(model), model.hidden_size, model.head_dim
    heights = (model.heads // nsa.query_groups * dim, *[dim] * (2 * BRANCHES))
    return {
        "linear_qkv.weight": Stack(hidden, heights, repeats=nsa.query_groups),
        "linear_gate.weight": Stack(hidden, (model.heads * BRANCHES,)),
        "linear_proj.weight": Stack(model.heads * dim, (hidden,)),
        **{f"compress_{of}.weight_in": Stack(nsa.compress_block * dim, (dim,), split=False) for of in ("key", "value")},
        **{f"compress_{of}.weight_out": Stack(dim, (dim,), split=False) for of in ("key", "value")},
    }


def _ratios(model: Decoder) -> tuple[float, ...]:
    """Return l / d, l' / l and n · l' / w."""
    nsa = nsa_keys(model)
    selected = nsa.select_count * nsa.select_block
    return nsa.compress_block / nsa.compress_stride, nsa.select_block / nsa.compress_block, selected / nsa.window


def _hidden_at(model: Decoder, seq_len: int) -> str | None:
    nsa = nsa_keys(model)
    chosen = nsa.select_count * nsa.select_block
    if chosen < seq_len:
        return None
    return (
        f"{nsa.select_count} blocks of {nsa.select_block} tokens hold all {seq_len:,} of a sequence, and nothing is "
        f"selected: set training.seq_len above {chosen:,}, or less in model.attention.select_block or select_count"
    )


VARIANT = AttentionVariant(
    config=NSAConfig,
    layer="efficientbench.model.attention.nsa:spec",
    costs=AttentionCosts(
        parameters=_parameters,
        projection_flops=lambda model: 2 * _projections(model),
        score_flops=_score_flops_full_square,
        causal_score_flops=_score_flops,
        products=lambda model, seq_len: _over(model, keys_in_sight(nsa_keys(model), seq_len).total, seq_len),
        computed_products=lambda model, seq_len: _over(model, keys_read(nsa_keys(model), seq_len).total, seq_len),
        keys_read_per_query=lambda model, seq_len: keys_read(nsa_keys(model), seq_len).total / seq_len,
        cached=_cached,
        state_bytes=_state_bytes,
        decode_reads=_decode_reads,
        decode_flops=_decode_flops,
        saved=_saved,
        recomputed=_recomputed,
        # Queries, keys and values are one projection, the gates another.
        column_inputs=lambda model: (model.hidden_size, model.hidden_size),
        replicated_parameters=_compression_parameters,
        summed_by_micro_batch=_compression_parameters,
    ),
    places=frozenset({"nothing", "embedding", "queries and keys"}),
    other_positions="NSA's branches take no bias on their scores, as position.kind={position} is: set position.kind to "
    "{taken}",
    kernels="efficientbench.model.kernels.nsa.own_kernels:KERNELS",
    may_differ=("nsa_selection", "fla-core adds a block's gradients in the order in which atomic operations come"),
    matrices=_matrices,
    read_whole=tuple(f"compress_{of}.weight_{end}" for of in ("key", "value") for end in ("in", "out")),
    cache_choices=group_choices,
    hidden_at=_hidden_at,
    tensor_parallel=_uneven,
    # Kernels of accelerators are compiled for a length, or want whole blocks.
    within_documents=("cpu",),
    selective_recomputation=True,
    profiled_as=("RangeAttention", "SelectedAttention", "choose_at_once"),
    not_exported="no class of transformers has Native Sparse Attention",
    # A query reads only a part of the sequence.
    tiny=(
        *("model.attention.compress_block=4", "model.attention.compress_stride=2", "model.attention.select_block=8"),
        *("model.attention.select_count=4", "model.attention.window=12", "training.seq_len=64"),
    ),
    ratios=_ratios,
)
