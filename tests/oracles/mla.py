"""transformers' DeepSeek-V2, dense in every layer, with the weights of one of our models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from oracles.qwen2 import multiply_embedding, rotation

from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.model import ModelConfig
from efficientbench.export.tensors import exported

if TYPE_CHECKING:
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM


def deepseek_config(model: ModelConfig) -> DeepseekV2Config:
    """The configuration of the same architecture; skips the test where transformers is older than it."""
    if not hasattr(transformers, "DeepseekV2Config"):
        pytest.skip(f"transformers {transformers.__version__} has no DeepSeek-V2")
    mla = model.attention
    assert isinstance(mla, MLAConfig)
    return transformers.DeepseekV2Config(
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
        **rotation(model.position.base),
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="eager",
    )


def renamed(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by DeepSeek-V2's names and layout."""
    tied = model.model_copy(update={"embedding_multiplier": 1.0})
    return dict(exported(tensors, tied, "deepseek_v2"))


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> DeepseekV2ForCausalLM:
    """A float32 DeepSeek-V2 whose weights are `tensors`, by our global names."""
    deepseek = transformers.DeepseekV2ForCausalLM(deepseek_config(model)).float()
    missing, unexpected = deepseek.load_state_dict(renamed(tensors, model), strict=False)
    assert missing == ["lm_head.weight"]  # tied to the embedding
    assert not unexpected
    multiply_embedding(deepseek, model)
    return deepseek
