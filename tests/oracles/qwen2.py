"""transformers' Qwen2 with the weights of one of our models."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.positions import RopeConfig


def rotation(base: float) -> dict[str, Any]:
    """The keys of a configuration of transformers for a rotation with this base."""
    if Version(transformers.__version__).major < 5:
        return {"rope_theta": base}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base}}


def qwen2_config(model: ModelConfig) -> Qwen2Config:
    """The configuration of the same architecture."""
    assert isinstance(model.position, RopeConfig)
    return Qwen2Config(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.attention.query_groups,
        head_dim=model.head_dim,
        rms_norm_eps=model.norm_epsilon,
        **rotation(model.position.base),
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )


def to_qwen2(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by Qwen2's names."""
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        name = name.replace("decoder.layers", "model.layers").replace("decoder.final_layernorm", "model.norm")
        name = name.replace("embedding.word_embeddings", "model.embed_tokens")
        name = name.replace("pre_mlp_layernorm", "post_attention_layernorm")
        name = name.replace("self_attention.linear_proj", "self_attn.o_proj").replace("linear_fc2", "down_proj")
        name = name.replace("self_attention.core_attention", "self_attn")
        if "linear_qkv" in name:
            for part, piece in zip("qkv", _split_qkv(tensor, model), strict=True):
                renamed[name.replace("self_attention.linear_qkv", f"self_attn.{part}_proj")] = piece
        elif "linear_fc1" in name:
            gate, up = tensor.chunk(2)
            renamed[name.replace("linear_fc1", "gate_proj")] = gate
            renamed[name.replace("linear_fc1", "up_proj")] = up
        else:
            renamed[name] = tensor
    return renamed


def _split_qkv(tensor: torch.Tensor, model: ModelConfig) -> tuple[torch.Tensor, ...]:
    # Each group's query heads, key and value lie together.
    groups, head_dim = model.attention.query_groups, model.head_dim
    per_group = tensor.view(groups, -1, head_dim, *tensor.shape[1:])
    sizes = [model.heads // groups, 1, 1]
    return tuple(part.flatten(0, 2) for part in per_group.split(sizes, dim=1))


def multiply_embedding(model: PreTrainedModel, ours: ModelConfig) -> None:
    """Let a model of transformers multiply what it embeds by the factor of ours."""
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, inputs, embedded: embedded * ours.embedding_multiplier)


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> Qwen2ForCausalLM:
    """A float32 Qwen2 whose weights are `tensors`, by our global names."""
    qwen2 = Qwen2ForCausalLM(qwen2_config(model)).float()
    missing, unexpected = qwen2.load_state_dict(to_qwen2(tensors, model), strict=False)
    assert missing == ["lm_head.weight"]  # tied to the embedding
    assert not unexpected
    multiply_embedding(qwen2, model)
    return qwen2
