"""MLA in transformers: DeepSeek-V2 and V3, and Kimi Linear."""

from __future__ import annotations

import torch

from efficientbench.architecture.mla import mla_keys
from efficientbench.architecture.model import ModelConfig
from efficientbench.export.architectures import Exporter
from efficientbench.export.families import LATENT, LATENT_EPSILON, LATENT_ROPE, Architecture

RENAMED = {
    "self_attention.q_layernorm.weight": "self_attn.q_a_layernorm.weight",
    "self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight",
    "self_attention.kv_layernorm.weight": "self_attn.kv_a_layernorm.weight",
    "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
}
"""Tensors that are only renamed: ours → transformers'."""

ROTATED_QUERIES = {
    "self_attention.linear_q_proj.weight": "self_attn.q_proj.weight",
    "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
}
"""Query projections, whose rotated rows are reordered: ours → transformers'."""


def _weights(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    mla, hidden = mla_keys(model), model.hidden_size
    queries, key_values = model.heads * mla.key_dim, model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    shapes: dict[str, tuple[int, ...]] = {
        "linear_kv_down_proj": (mla.kv_lora_rank + mla.qk_rope_head_dim, hidden),
        "linear_kv_up_proj": (key_values, mla.kv_lora_rank),
        "linear_proj": (hidden, model.heads * mla.v_head_dim),
    }
    if mla.q_lora_rank is None:
        shapes["linear_q_proj"] = (queries, hidden)
    else:
        shapes |= {"linear_q_down_proj": (mla.q_lora_rank, hidden), "linear_q_up_proj": (queries, mla.q_lora_rank)}
    return {f"self_attention.{name}.weight": shape for name, shape in shapes.items()}


def _norms(model: ModelConfig) -> dict[str, int]:
    mla = mla_keys(model)
    widths = {"self_attention.kv_layernorm.weight": mla.kv_lora_rank}
    return widths | ({"self_attention.q_layernorm.weight": mla.q_lora_rank} if mla.q_lora_rank else {})


def _converted(
    part: str, weight: torch.Tensor, model: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    if part in RENAMED:
        return {RENAMED[part]: weight}
    if part in ROTATED_QUERIES:
        heads = weight.unflatten(0, (model.heads, -1))
        return {ROTATED_QUERIES[part]: _pairs_side_by_side(heads, model).flatten(0, 1)}
    if part == "self_attention.linear_kv_down_proj.weight":
        return {"self_attn.kv_a_proj_with_mqa.weight": _pairs_side_by_side(weight[None], model)[0]}
    return {}


def _pairs_side_by_side(heads: torch.Tensor, model: ModelConfig) -> torch.Tensor:
    """Reorder the last rows of [heads, rows, …], which RoPE rotates: pairs half a block apart become adjacent."""
    if model.position.rope_base is None:
        return heads
    rotated = mla_keys(model).qk_rope_head_dim
    halves = heads[:, -rotated:].unflatten(1, (2, rotated // 2))
    return torch.cat([heads[:, :-rotated], halves.transpose(1, 2).flatten(1, 2)], dim=1)


def _parts(view: ModelConfig) -> dict[str, str]:
    parts = {LATENT: "attention.kind=mla"}
    if view.position.rope_base is not None:
        parts[LATENT_ROPE] = f"position.kind={view.position.kind}"
    # transformers' norms of latents have this epsilon, whatever the other norms have.
    if view.norm_epsilon != LATENT_EPSILON:
        parts[f"norms of latents with an epsilon other than {LATENT_EPSILON:g}"] = f"norm_epsilon={view.norm_epsilon:g}"
    return parts


EXPORTER = Exporter(_parts, _norms, _weights, _converted)
