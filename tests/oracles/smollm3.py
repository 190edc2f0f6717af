"""transformers' SmolLM3 with the weights of one of our models: windows and no positions, each in some layers."""

from __future__ import annotations

import torch
from oracles.qwen2 import multiply_embedding, rotation
from oracles.qwen2 import to_qwen2 as renamed
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.model import ModelConfig

__all__ = ["renamed", "same_weights"]


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> SmolLM3ForCausalLM:
    """A float32 SmolLM3 whose weights are `tensors`, by our global names."""
    views = [model.views[name] for name in model.layer_kinds]
    windows = [view.attention.window if isinstance(view.attention, GQAConfig) else None for view in views]
    [base] = {view.position.rope_base for view in views if view.position.rope_base is not None}
    assert base is not None
    config = SmolLM3Config(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        rms_norm_eps=model.norm_epsilon,
        # The class calls 1 a layer that has them.
        no_rope_layers=[int(view.position.rope_base is not None) for view in views],
        use_sliding_window=any(windows),
        sliding_window=max((window for window in windows if window), default=None),
        layer_types=["sliding_attention" if window else "full_attention" for window in windows],
        tie_word_embeddings=True,
        use_cache=False,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        attn_implementation="eager",
        **rotation(base),
    )
    oracle = SmolLM3ForCausalLM(config).float()
    missing, unexpected = oracle.load_state_dict(renamed(tensors, model), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    multiply_embedding(oracle, model)
    return oracle
