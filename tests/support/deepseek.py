"""transformers' DeepSeek-V2, dense in every layer, with the weights of one of our models."""

from __future__ import annotations

import torch
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

from efficientbench.config.model import MLAConfig, ModelConfig


def deepseek_config(model: ModelConfig) -> DeepseekV2Config:
    """The configuration of the same architecture."""
    mla = widths(model)
    return DeepseekV2Config(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        first_k_dense_replace=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.heads,
        q_lora_rank=mla.q_lora_rank,
        kv_lora_rank=mla.kv_lora_rank,
        qk_nope_head_dim=mla.qk_nope_head_dim,
        qk_rope_head_dim=mla.qk_rope_head_dim,
        v_head_dim=mla.v_head_dim,
        rms_norm_eps=model.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": model.position.base},
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="eager",
    )


def widths(model: ModelConfig) -> MLAConfig:
    """The widths of its attention."""
    assert isinstance(model.attention, MLAConfig)
    return model.attention


RENAMED = {
    "decoder.layers": "model.layers",
    "decoder.final_layernorm": "model.norm",
    "embedding.word_embeddings": "model.embed_tokens",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc2": "mlp.down_proj",
    "self_attention.linear_proj": "self_attn.o_proj",
    "self_attention.linear_q_proj": "self_attn.q_proj",
    "self_attention.linear_q_down_proj": "self_attn.q_a_proj",
    "self_attention.q_layernorm": "self_attn.q_a_layernorm",
    "self_attention.linear_q_up_proj": "self_attn.q_b_proj",
    "self_attention.linear_kv_down_proj": "self_attn.kv_a_proj_with_mqa",
    "self_attention.kv_layernorm": "self_attn.kv_a_layernorm",
    "self_attention.linear_kv_up_proj": "self_attn.kv_b_proj",
}


def to_deepseek(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by DeepSeek-V2's names and layout."""
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(("linear_q_proj.weight", "linear_q_up_proj.weight")):
            tensor = _side_by_side(tensor.unflatten(0, (model.heads, -1)), model).flatten(0, 1)
        elif name.endswith("linear_kv_down_proj.weight"):
            tensor = _side_by_side(tensor[None], model)[0]
        for ours, theirs in RENAMED.items():
            name = name.replace(ours, theirs)
        if "linear_fc1" in name:
            gate, up = tensor.chunk(2)
            renamed[name.replace("linear_fc1", "gate_proj")] = gate
            renamed[name.replace("linear_fc1", "up_proj")] = up
        else:
            renamed[name] = tensor
    return renamed


def _side_by_side(heads: torch.Tensor, model: ModelConfig) -> torch.Tensor:
    """[heads, rows, H] whose last rows are rotated in pairs that are halves apart → pairs that are side by side."""
    rotated = widths(model).qk_rope_head_dim
    before, halves = heads[:, :-rotated], heads[:, -rotated:]
    pairs = halves.unflatten(1, (2, rotated // 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat([before, pairs], dim=1)


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> DeepseekV2ForCausalLM:
    """A float32 DeepSeek-V2 whose weights are `tensors`, by our global names."""
    deepseek = DeepseekV2ForCausalLM(deepseek_config(model)).float()
    missing, unexpected = deepseek.load_state_dict(to_deepseek(tensors, model), strict=False)
    assert missing == ["lm_head.weight"]  # tied to the embedding
    assert not unexpected
    return deepseek
