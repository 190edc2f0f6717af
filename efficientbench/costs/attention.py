"""What one layer of each attention costs, as pure formulas; no torch.

A new attention adds one entry to ATTENTION below, found by its `kind`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efficientbench.config.model import GQAConfig, MLAConfig, ModelConfig
from efficientbench.costs import nsa as nsa_cost


@dataclass(frozen=True)
class AttentionCost:
    """One attention layer's formulas, projections included. Counts are of elements, not bytes."""

    parameters: Callable[[ModelConfig], int]
    replicated_parameters: Callable[[ModelConfig], int]
    """Of these, what every tensor-parallel rank holds whole."""
    projection_flops: Callable[[ModelConfig], int]
    """Forward FLOPs per token in the projections."""
    score_flops: Callable[[ModelConfig, int], int]
    """Forward FLOPs per token in scores and their product with the values, over keys of the full square."""
    cached: Callable[[ModelConfig], int]
    """Elements that decoding keeps per token."""
    saved: Callable[[ModelConfig, int], int]
    """(model, t) → elements per token that one rank keeps from forward to backward, the layer's input left out."""
    recomputed: Callable[[ModelConfig, int], int]
    """(model, t) → of these, what selective recomputation does not keep."""
    gathered: Callable[[ModelConfig, int], int]
    """(model, t) → of these, keys and values: context-parallel ranks keep those of the whole sequence."""
    exchanged: Callable[[ModelConfig, int], int]
    """(model, t) → elements per token of keys and values that context-parallel ranks send one another."""
    column_inputs: Callable[[ModelConfig], tuple[int, ...]]
    """Widths of what goes into each projection that tensor-parallel ranks split by its outputs."""
    causal_score_flops: Callable[[ModelConfig, int], int] | None = None
    """The same as score_flops over the keys that a query sees; None: half of the full square."""
    keys_read_per_query: Callable[[ModelConfig, int], float] | None = None
    """Mean number of keys that a query reads in a sequence of so many tokens; None: all in its past and itself."""


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
    """QKV (the values are a view of it), rotated queries and keys, and the output. Without rotation a little less: the
    keys are a view too."""
    groups = max(_gqa(model).query_groups // tp, 1)
    heads = model.heads // tp
    return ((heads + 2 * groups) + (heads + groups) + heads) * model.head_dim


def _mla(model: ModelConfig) -> MLAConfig:
    assert isinstance(model.attention, MLAConfig)
    return model.attention


def _mla_key_dim(model: ModelConfig) -> int:
    return _mla(model).qk_nope_head_dim + _mla(model).qk_rope_head_dim


def _mla_cached(model: ModelConfig) -> int:
    """The latent and the shared key."""
    return _mla(model).kv_lora_rank + _mla(model).qk_rope_head_dim


def _mla_down(model: ModelConfig) -> int:
    """Weights of the projections to latents, the shared key's among them."""
    return model.hidden_size * (_mla_cached(model) + (_mla(model).q_lora_rank or 0))


def _mla_latent_norms(model: ModelConfig) -> int:
    return _mla(model).kv_lora_rank + (_mla(model).q_lora_rank or 0)


def _mla_projections(model: ModelConfig) -> int:
    """Weights of all projections: to latents, from latents to heads, and from heads to the output."""
    mla = _mla(model)
    query = (mla.q_lora_rank or model.hidden_size) * _mla_key_dim(model)
    key_value = mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
    return _mla_down(model) + model.heads * (query + key_value + mla.v_head_dim * model.hidden_size)


def _mla_saved(model: ModelConfig, tp: int) -> int:
    """Latents before and after their norm, and per head: rotated queries, keys, values and output as wide as keys (as
    the CPU's kernel wants them; others keep a little less), and the output in its own width."""
    latents = _mla_cached(model) + _mla(model).kv_lora_rank + 2 * (_mla(model).q_lora_rank or 0)
    return latents + model.heads // tp * (4 * _mla_key_dim(model) + _mla(model).v_head_dim)


def _mla_recomputed(model: ModelConfig, tp: int) -> int:
    """Of what each head keeps, all but queries, keys and values as they are projected, and the output."""
    mla = _mla(model)
    return model.heads // tp * (3 * _mla_key_dim(model) - mla.qk_nope_head_dim - mla.v_head_dim)


ATTENTION = {
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
        parameters=nsa_cost.parameters,
        replicated_parameters=nsa_cost.compression_parameters,
        projection_flops=nsa_cost.projection_flops,
        score_flops=nsa_cost.score_flops_full_square,
        cached=nsa_cost.cached,
        saved=nsa_cost.saved,
        recomputed=nsa_cost.recomputed,
        gathered=lambda model, tp: 0,
        exchanged=lambda model, tp: 0,
        # Of queries, keys and values, and of the gates.
        column_inputs=lambda model: (model.hidden_size, model.hidden_size),
        causal_score_flops=nsa_cost.score_flops,
        keys_read_per_query=nsa_cost.keys_read_per_query,
    ),
}
