"""transformers' Qwen3-Next without its linear attention and its experts: a gate, norms on heads, a partial rotation."""

from __future__ import annotations

import sys

import pytest
import torch
from oracles.qwen2 import multiply_embedding, to_qwen2

from efficientbench.architecture.model import ModelConfig

with pytest.MonkeyPatch.context() as _patch:
    # The module keeps what it finds when it is first loaded, and fla's kernels need a GPU.
    _patch.setitem(sys.modules, "fla", None)
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> Qwen3NextForCausalLM:
    """A float32 Qwen3-Next whose weights are `tensors`, by our global names."""
    config = Qwen3NextConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        head_dim=model.head_dim,
        rms_norm_eps=model.norm_epsilon,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": model.position.rope_base,
            "partial_rotary_factor": model.rotated_dim / model.head_dim,
        },
        layer_types=["full_attention"] * model.layers,
        num_experts=0,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="eager",
    )
    oracle = Qwen3NextForCausalLM(config).float()
    # This class multiplies by 1 + w.
    weights = {name: each - 1 if "norm" in name else each for name, each in renamed(tensors, model).items()}
    missing, unexpected = oracle.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    multiply_embedding(oracle, model)
    return oracle


def renamed(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by Qwen3-Next's names."""
    joint = {name: tensor for name, tensor in tensors.items() if "linear_qkv" in name}
    found = to_qwen2({name: tensor for name, tensor in tensors.items() if name not in joint}, model)
    found = {
        name.replace("self_attention.q_layernorm", "self_attn.q_norm").replace(
            "self_attention.k_layernorm", "self_attn.k_norm"
        ): tensor.roll(model.rotated_dim) if "self_attention" in name else tensor
        for name, tensor in found.items()
    }
    heads = model.heads // model.key_value_heads
    for name, tensor in joint.items():
        parts = tensor.unflatten(0, (model.key_value_heads, -1, model.head_dim)).split([heads, heads, 1, 1], dim=1)
        query, gate, key, value = (each.flatten(0, 1) for each in parts)
        # The rotated dimensions come first here, and a head's gate behind its query.
        query, key = (each.roll(model.rotated_dim, dims=1) for each in (query, key))
        split = {"q": torch.cat([query, gate], dim=1), "k": key, "v": value}
        layer = name.replace("decoder.layers", "model.layers").replace("self_attention.linear_qkv", "self_attn.{}_proj")
        found |= {layer.format(letter): part.flatten(0, 1) for letter, part in split.items()}
    return found
