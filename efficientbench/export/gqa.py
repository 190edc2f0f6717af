"""GQA and MQA in transformers: Qwen2, Llama, SmolLM3, Mixtral and Qwen2-MoE."""

from __future__ import annotations

from typing import Any

import torch

from efficientbench.config.model import ModelConfig
from efficientbench.config.registry import position_of
from efficientbench.export.architectures import Architecture, Exporter, refusal
from efficientbench.model.attention.gqa_variant import GQAConfig


def _gqa(model: ModelConfig) -> GQAConfig:
    assert isinstance(model.attention, GQAConfig)
    return model.attention


def _architecture(model: ModelConfig, tokenizer_survives_qwen2: bool) -> Architecture:
    position, qkv_bias = position_of(model), _gqa(model).qkv_bias
    if model.position.rope_base is not None:
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
    return "smollm3"


def _settings(model: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    settings: dict[str, Any] = {"head_dim": model.head_dim}
    if architecture == "llama":
        settings |= {"attention_bias": _gqa(model).qkv_bias, "mlp_bias": False}
    elif architecture == "smollm3":
        settings |= {"attention_bias": _gqa(model).qkv_bias, "no_rope_layers": [0] * model.layers}
    return settings


def _converted(
    part: str, weight: torch.Tensor, model: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """Split a weight or bias, which has query heads, key and value of each group together, into q, k and v."""
    if not part.startswith("self_attention.linear_qkv."):
        return {}
    kind = part.rpartition(".")[2]
    groups = weight.unflatten(0, (model.key_value_heads, -1, model.head_dim))
    parts = groups.split([model.heads // model.key_value_heads, 1, 1], dim=1)
    tensors = {f"self_attn.{letter}_proj.{kind}": part.flatten(0, 2) for letter, part in zip("qkv", parts, strict=True)}
    if architecture in ("llama", "smollm3") and kind == "bias":
        # These classes have biases on all four projections or on none; a bias of zeros is none.
        tensors["self_attn.o_proj.bias"] = weight.new_zeros(model.hidden_size)
    return tensors


EXPORTER = Exporter(_architecture, _settings, _converted)
