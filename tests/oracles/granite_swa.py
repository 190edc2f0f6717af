"""transformers' GraniteSWA with the weights of one of our models: windows in some layers, no positions in others."""

from __future__ import annotations

import math

import torch
from oracles.qwen2 import multiply_embedding
from oracles.qwen2 import to_qwen2 as renamed
from transformers import GraniteSWAConfig, GraniteSWAForCausalLM

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.model import ModelConfig

__all__ = ["renamed", "same_weights"]

NO_SINK = -1e4
"""A sink's logit that takes nothing: GraniteSWA has one for each head, and e to this power is 0."""


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> GraniteSWAForCausalLM:
    """A float32 GraniteSWA whose weights are `tensors`, by our global names."""
    views = [model.views[name] for name in model.layer_kinds]
    attentions = [view.attention for view in views if isinstance(view.attention, GQAConfig)]
    [window] = {attention.window for attention in attentions if attention.window}
    config = GraniteSWAConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=attentions[0].query_groups,
        rms_norm_eps=model.norm_epsilon,
        attention_multiplier=1 / math.sqrt(model.head_dim),
        sliding_window=window,
        layer_types=["sliding_attention" if each.window else "full_attention" for each in attentions],
        layer_rope_theta=[view.position.rope_base or 0 for view in views],
        use_cache=False,
        attn_implementation="eager",
    )
    oracle = GraniteSWAForCausalLM(config).float()
    missing, unexpected = oracle.load_state_dict(renamed(tensors, model), strict=False)
    assert not unexpected
    assert all(name == "lm_head.weight" or name.endswith("sinks") for name in missing), missing
    for layer, attention in zip(oracle.model.layers, attentions, strict=True):
        if not attention.sinks:
            # A buffer, which has no gradient to compare.
            del layer.self_attn.sinks
            layer.self_attn.register_buffer("sinks", torch.full((model.heads,), NO_SINK))
    multiply_embedding(oracle, model)
    return oracle
