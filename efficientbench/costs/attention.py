"""Formulas for one layer of each attention variant, without torch.

A new variant adds one entry to ATTENTION_COSTS, under its `kind`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efficientbench.config.model import GQAConfig, MLAConfig, ModelConfig
from efficientbench.costs import nsa


@dataclass(frozen=True)
class AttentionCost:
    """Formulas for one attention layer with its projections. They count elements, not bytes."""

    parameters: Callable[[ModelConfig], int]
    """Parameters of the layer."""
    replicated_parameters: Callable[[ModelConfig], int]
    """Parameters that every tensor-parallel rank holds whole."""
    projection_flops: Callable[[ModelConfig], int]
    """Forward FLOPs per token in the projections."""
    score_flops: Callable[[ModelConfig, int], int]
    """(model, sequence length) → forward FLOPs per token in scores and their product with the values, full square."""
    cached: Callable[[ModelConfig], int]
    """Elements per token that decoding keeps in its cache."""
    saved: Callable[[ModelConfig, int], int]
    """(model, t) → elements per token that one rank keeps from forward to backward, without the layer's input."""
    recomputed: Callable[[ModelConfig, int], int]
    """(model, t) → elements of `saved` that selective recomputation computes again instead."""
    gathered: Callable[[ModelConfig, int], int]
    """(model, t) → elements of `saved` in keys and values, which context-parallel ranks keep for the whole sequence."""
    exchanged: Callable[[ModelConfig, int], int]
    """(model, t) → elements per token of the keys and values that context-parallel ranks send each other."""
    column_inputs: Callable[[ModelConfig], tuple[int, ...]]
    """Input width of each column-parallel projection, which tensor-parallel ranks split by its outputs."""
    causal_score_flops: Callable[[ModelConfig, int], int] | None = None
    """`score_flops` over the keys that a query can see; None: half of the full square."""
    keys_read_per_query: Callable[[ModelConfig, int], float] | None = None
    """(model, sequence length) → mean number of keys that a query reads; None: its own and all before it."""


def _gqa(model: ModelConfig) -> GQAConfig:
    assert isinstance(model.attention, GQAConfig)
    return model.attention


def _gqa_qkv(model: ModelConfig) -> int:
    return (model.heads + 2 * _gqa(model).query_groups) * model.head_dim


def _gqa_parameters(model: ModelConfig) -> int:
    bias = _gqa_qkv(model) if _gqa(model).qkv_bias else 0
    return (_gqa_qkv(model) + model.heads * model.head_dim) * model.hidden_size + bias


def _gqa_key(model: ModelConfig, tp: int) -> int:
    return max(_gqa(model).query_groups // tp, 1) * model.head_dim


def _gqa_saved(model: ModelConfig, tp: int) -> int:
    """Count QKV (the values are a view of it), rotated queries and keys, and the output.

    Without rotation it is a little less, since the keys are a view too.
    """
    groups = max(_gqa(model).query_groups // tp, 1)
    heads = model.heads // tp
    return ((heads + 2 * groups) + (heads + groups) + heads) * model.head_dim


def _mla(model: ModelConfig) -> MLAConfig:
    assert isinstance(model.attention, MLAConfig)
    return model.attention


def _mla_key_dim(model: ModelConfig) -> int:
    return _mla(model).qk_nope_head_dim + _mla(model).qk_rope_head_dim


def _mla_cached(model: ModelConfig) -> int:
    """Count the latent and the key that all heads share."""
    return _mla(model).kv_lora_rank + _mla(model).qk_rope_head_dim


def _mla_down(model: ModelConfig) -> int:
    """Count the weights of the projections to the latents and to the shared key."""
    return model.hidden_size * (_mla_cached(model) + (_mla(model).q_lora_rank or 0))


def _mla_latent_norms(model: ModelConfig) -> int:
    return _mla(model).kv_lora_rank + (_mla(model).q_lora_rank or 0) if model.norm_weights else 0


def _mla_projections(model: ModelConfig) -> int:
    """Count the weights of all projections: to latents, from latents to heads, and from heads to the output."""
    mla = _mla(model)
    query = (mla.q_lora_rank or model.hidden_size) * _mla_key_dim(model)
    key_value = mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
    return _mla_down(model) + model.heads * (query + key_value + mla.v_head_dim * model.hidden_size)


def _mla_saved(model: ModelConfig, tp: int) -> int:
    """Count latents before and after their norm, and what each head keeps.

    A head keeps rotated queries, keys, values and output as wide as keys, and the output in its own width. The CPU's
    kernel needs values and output that wide; others keep a little less.
    """
    latents = _mla_cached(model) + _mla(model).kv_lora_rank + 2 * (_mla(model).q_lora_rank or 0)
    return latents + model.heads // tp * (4 * _mla_key_dim(model) + _mla(model).v_head_dim)


def _mla_recomputed(model: ModelConfig, tp: int) -> int:
    """Count what each head keeps beside the projected queries, keys and values, and the output."""
    mla = _mla(model)
    return model.heads // tp * (3 * _mla_key_dim(model) - mla.qk_nope_head_dim - mla.v_head_dim)


ATTENTION_COSTS = {
    "gqa": AttentionCost(
        parameters=_gqa_parameters,
        replicated_parameters=lambda model: 0,
        projection_flops=lambda model: 2 * model.hidden_size * (_gqa_qkv(model) + model.heads * model.head_dim),
        score_flops=lambda model, seq_len: 4 * model.heads * model.head_dim * seq_len,
        cached=lambda model: 2 * _gqa(model).query_groups * model.head_dim,
        saved=_gqa_saved,
        recomputed=lambda model, tp: _gqa_key(model, tp),
        gathered=lambda model, tp: 2 * _gqa_key(model, tp),
        exchanged=lambda model, tp: 2 * _gqa_key(model, tp),
        column_inputs=lambda model: (model.hidden_size,),
    ),
    "mla": AttentionCost(
        parameters=lambda model: _mla_projections(model) + _mla_latent_norms(model),
        replicated_parameters=lambda model: _mla_down(model) + _mla_latent_norms(model),
        projection_flops=lambda model: 2 * _mla_projections(model),
        score_flops=lambda model, seq_len: 2 * model.heads * (_mla_key_dim(model) + _mla(model).v_head_dim) * seq_len,
        cached=_mla_cached,
        saved=_mla_saved,
        recomputed=_mla_recomputed,
        gathered=lambda model, tp: model.heads // tp * 2 * _mla_key_dim(model),
        exchanged=lambda model, tp: model.heads // tp * (_mla_key_dim(model) + _mla(model).v_head_dim),
        column_inputs=lambda model: (_mla(model).q_lora_rank or model.hidden_size, _mla(model).kv_lora_rank),
    ),
    "nsa": AttentionCost(
        parameters=nsa.parameters,
        replicated_parameters=nsa.compression_parameters,
        projection_flops=nsa.projection_flops,
        score_flops=nsa.score_flops_full_square,
        cached=nsa.cached,
        saved=nsa.saved,
        recomputed=nsa.recomputed,
        gathered=lambda model, tp: 0,
        exchanged=lambda model, tp: 0,
        # Queries, keys and values are one projection, the gates another.
        column_inputs=lambda model: (model.hidden_size, model.hidden_size),
        causal_score_flops=nsa.score_flops,
        keys_read_per_query=nsa.keys_read_per_query,
    ),
}
