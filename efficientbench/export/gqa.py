"""GQA and MQA in transformers: Qwen2, Qwen3, Llama, SmolLM3, NanoChat, Mistral and Mixtral."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import position_of
from efficientbench.export.architectures import Architecture, Exporter, is_nanochats, refusal, rope_keys

if TYPE_CHECKING:
    from transformers import PretrainedConfig

IMPORTED: tuple[Architecture, ...] = (
    *("qwen2", "llama", "mistral", "qwen3", "smollm3", "nanochat"),
    *("mixtral", "qwen2_moe", "qwen3_moe"),
)
ONE_BIAS_FOR_ALL = ("llama", "smollm3", "qwen3", "qwen3_moe", "nanochat")
"""Model types with biases on all four projections of attention or on none."""
HEAD_NORMS = {
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
"""Norms on the heads' queries and keys: ours → transformers'."""


def _gqa(model: ModelConfig) -> GQAConfig:
    assert isinstance(model.attention, GQAConfig)
    return model.attention


def _architecture(model: ModelConfig, tokenizer_survives_qwen2: bool) -> Architecture:
    position, qkv_bias = position_of(model), _gqa(model).qkv_bias
    for key in _gqa(model).later_keys:
        if getattr(_gqa(model), key):
            raise refusal(f"model.attention.{key}", f"models with {key} are not exported yet")
    if is_nanochats(model):
        return "nanochat"
    if model.position.rope_base is not None:
        if model.qk_norm:
            return "qwen3_moe" if model.moe else "qwen3"
        if model.moe:
            return "qwen2_moe" if qkv_bias else "mixtral"
        return "qwen2" if qkv_bias and tokenizer_survives_qwen2 else "llama"
    if position.place != "nothing":
        raise refusal(f"model.position.kind={model.position.kind}", position.not_exported)
    if model.moe:
        raise refusal(
            f"model.position.kind={model.position.kind} with model.moe",
            "no class of transformers has such experts without RoPE",
        )
    if model.qk_norm:
        raise refusal(
            f"model.position.kind={model.position.kind} with model.qk_norm",
            "no class of transformers has norms on queries without RoPE",
        )
    return "smollm3"


def _settings(model: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    settings: dict[str, Any] = {"head_dim": model.head_dim}
    if architecture in ONE_BIAS_FOR_ALL:
        settings["attention_bias"] = _gqa(model).qkv_bias
    if architecture == "llama":
        settings["mlp_bias"] = False
    elif architecture == "smollm3":
        settings["no_rope_layers"] = [0] * model.layers
    elif architecture == "nanochat":
        settings |= {"hidden_act": "relu2", "final_logit_softcapping": model.logit_softcap}
    return settings


def _keys(found: PretrainedConfig) -> dict[str, Any]:
    # The Qwen2 classes always have this bias, Mistral's never do.
    bias = found.attention_bias if found.model_type in ONE_BIAS_FOR_ALL else found.model_type.startswith("qwen2")
    rotates = found.model_type != "smollm3"
    return {
        "attention": {"kind": "gqa", "query_groups": found.num_key_value_heads, "qkv_bias": bias},
        "position": rope_keys(found.rope_parameters) if rotates else {"kind": "none"},
        "head_dim": found.head_dim,
    }


def _weights(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    width = (model.heads + 2 * model.key_value_heads) * model.head_dim
    weights: dict[str, tuple[int, ...]] = {
        "self_attention.linear_qkv.weight": (width, model.hidden_size),
        "self_attention.linear_proj.weight": (model.hidden_size, model.heads * model.head_dim),
    }
    return weights | ({"self_attention.linear_qkv.bias": (width,)} if _gqa(model).qkv_bias else {})


def _norms(model: ModelConfig) -> dict[str, int]:
    names = [name.removesuffix(".weight") for name in HEAD_NORMS] if model.qk_norm else []
    return dict.fromkeys(names, model.head_dim)


def _converted(
    part: str, weight: torch.Tensor, model: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """Split the joint QKV weight or bias, which has query heads, key and value group by group, into q, k and v."""
    if model.qk_norm and part in HEAD_NORMS:
        return {HEAD_NORMS[part]: weight}
    if not part.startswith("self_attention.linear_qkv."):
        return {}
    kind = part.rpartition(".")[2]
    groups = weight.unflatten(0, (model.key_value_heads, -1, model.head_dim))
    query, key, value = groups.split([model.heads // model.key_value_heads, 1, 1], dim=1)
    if architecture == "nanochat":
        # NanoChat rotates pairs in the other direction, which exchanging their halves undoes.
        query, key = (torch.cat(each.chunk(2, dim=2)[::-1], dim=2) for each in (query, key))
    parts = query, key, value
    tensors = {f"self_attn.{letter}_proj.{kind}": part.flatten(0, 2) for letter, part in zip("qkv", parts, strict=True)}
    if architecture in ONE_BIAS_FOR_ALL and kind == "bias":
        # A bias of zeros has no effect.
        tensors["self_attn.o_proj.bias"] = weight.new_zeros(model.hidden_size)
    return tensors


EXPORTER = Exporter(_architecture, _settings, IMPORTED, _keys, _norms, _weights, _converted)
