"""GQA and MQA in transformers: Qwen2, Qwen3, Qwen3.5, Llama, SmolLM3, NanoChat, Mistral, Mixtral, GraniteSWA, Bamba."""

from __future__ import annotations

import torch

from efficientbench.architecture.gqa import gqa_keys
from efficientbench.architecture.model import ModelConfig
from efficientbench.export.architectures import Exporter
from efficientbench.export.families import BIAS, EITHER, FAMILIES, GATES, SINKS, UNBIASED, WINDOW, Architecture

NAMES = {"window": WINDOW, "sinks": SINKS, "gate": GATES}
"""The parts of layers that keys stand for."""
OUR_SINKS = "self_attention.core_attention.sinks"
OUR_OUTPUT = "self_attention.linear_proj.weight"
HEAD_NORMS = {
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
"""Norms on the heads' queries and keys: ours → transformers'."""


def _parts(view: ModelConfig) -> dict[str, str]:
    parts = {BIAS: "attention.qkv_bias=true"} if gqa_keys(view).qkv_bias else {UNBIASED: "attention.qkv_bias=false"}
    further = view.attention.model_dump(exclude={"kind", "query_groups", "qkv_bias"})
    # A key without a name here is in no class.
    return parts | {NAMES.get(key, key): f"attention.{key}={value}" for key, value in further.items() if value}


def _weights(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    queries = model.heads * (2 if gqa_keys(model).gate else 1)
    width = (queries + 2 * model.key_value_heads) * model.head_dim
    weights: dict[str, tuple[int, ...]] = {
        "self_attention.linear_qkv.weight": (width, model.hidden_size),
        OUR_OUTPUT: (model.hidden_size, model.heads * model.head_dim),
    }
    if gqa_keys(model).qkv_bias:
        weights["self_attention.linear_qkv.bias"] = (width,)
    if gqa_keys(model).sinks:
        weights[OUR_SINKS] = (model.heads,)
    return weights


def _norms(model: ModelConfig) -> dict[str, int]:
    return dict.fromkeys(HEAD_NORMS if model.qk_norm else (), model.head_dim)


def _converted(
    part: str, weight: torch.Tensor, model: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """Split the joint QKV weight or bias into q, k and v.

    It has, group by group, query heads, their gates if there are any, key and value.
    """
    if model.qk_norm and part in HEAD_NORMS:
        return {HEAD_NORMS[part]: _rotated_first(weight, model, 0)}
    if part == OUR_OUTPUT:
        return {"self_attn.o_proj.weight": weight}
    if gqa_keys(model).sinks and part == OUR_SINKS:
        return {"self_attn.sinks": weight}
    if not part.startswith("self_attention.linear_qkv."):
        return {}
    kind = part.rpartition(".")[2]
    groups = weight.unflatten(0, (model.key_value_heads, -1, model.head_dim))
    heads = model.heads // model.key_value_heads
    query, gate, key, value = groups.split([heads, heads if gqa_keys(model).gate else 0, 1, 1], dim=1)
    query, key = (_rotated_first(each, model, 2) for each in (query, key))
    if gqa_keys(model).gate:
        # A head's gate lies behind its query.
        query = torch.cat([query, gate], dim=2)
    if architecture == "nanochat":
        # NanoChat rotates pairs in the other direction, which exchanging their halves undoes.
        query, key = (torch.cat(each.chunk(2, dim=2)[::-1], dim=2) for each in (query, key))
    parts = query, key, value
    tensors = {f"self_attn.{letter}_proj.{kind}": part.flatten(0, 2) for letter, part in zip("qkv", parts, strict=True)}
    if FAMILIES[architecture].takes >= EITHER and kind == "bias":
        # A bias of zeros has no effect.
        tensors["self_attn.o_proj.bias"] = weight.new_zeros(model.hidden_size)
    return tensors


def _rotated_first(x: torch.Tensor, model: ModelConfig, dim: int) -> torch.Tensor:
    """Bring the last dimensions of a head, which RoPE rotates of ours, before those that it leaves as they are."""
    rotated = model.rotated_dim
    return x.roll(rotated, dims=dim) if rotated < model.head_dim else x


EXPORTER = Exporter(_parts, _norms, _weights, _converted)
