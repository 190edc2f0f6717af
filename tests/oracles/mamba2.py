"""The oracle of Mamba-2: transformers' Bamba in float64, by its own chunks."""

from __future__ import annotations

import torch
from oracles.qwen2 import multiply_embedding, to_qwen2
from oracles.recurrent import EAGER, throughout_in_float64, within
from transformers import BambaConfig, BambaForCausalLM

from efficientbench.architecture.mamba2 import Mamba2Config
from efficientbench.architecture.model import ModelConfig

__all__ = ["EAGER", "renamed", "same_weights"]

RECURRENT = {
    **{name: name for name in ("A_log", "D", "dt_bias")},
    **{"out_norm": "norm.weight", "linear_proj.weight": "out_proj.weight"},
}
BACKBONE = {
    "post_attention_layernorm": "pre_ff_layernorm",
    "model.norm": "model.final_layernorm",
    ".mlp.": ".feed_forward.",
}
"""Bamba's names for what Qwen2 has too."""


def bamba_config(model: ModelConfig) -> BambaConfig:
    """The configuration of the same architecture; layers of another kind have plain attention without biases."""
    views = [model.views[name] for name in model.layer_kinds]
    mamba = next(view.attention for view in views if isinstance(view.attention, Mamba2Config))
    full = next((view for view in views if not isinstance(view.attention, Mamba2Config)), model)
    return BambaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=full.key_value_heads,
        rms_norm_eps=model.norm_epsilon,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": full.position.rope_base or 1e4,
            "partial_rotary_factor": full.rotated_dim / model.head_dim,
        },
        attn_layer_indices=[
            number for number, view in enumerate(views) if not isinstance(view.attention, Mamba2Config)
        ],
        mamba_n_heads=mamba.heads,
        mamba_d_head=mamba.value_dim,
        mamba_n_groups=mamba.key_heads,
        mamba_d_state=mamba.key_dim,
        mamba_d_conv=mamba.convolution,
        mamba_expand=mamba.inner_size // model.hidden_size,
        # No divisor of ours.
        mamba_chunk_size=10,
        # Else its row of the embedding would have no gradient.
        pad_token_id=None,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="eager",
    )


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> BambaForCausalLM:
    """A float64 Bamba whose weights are `tensors`, by our global names."""
    oracle = BambaForCausalLM(bamba_config(model)).double()
    missing, unexpected = oracle.load_state_dict(renamed(tensors, model), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    multiply_embedding(oracle, model)
    return within(oracle, throughout_in_float64)


def renamed(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by Bamba's names."""
    found: dict[str, torch.Tensor] = {}
    others, views = {}, model.views
    for name, tensor in tensors.items():
        before, _, own = name.partition(".self_attention.")
        view = views[model.layer_kinds[int(before.rpartition(".")[2])]] if own else None
        if view is None or not isinstance(view.attention, Mamba2Config):
            others[name] = tensor
            continue
        place = before.replace("decoder.layers", "model.layers") + ".mamba."
        if own in RECURRENT:
            found[place + RECURRENT[own]] = tensor
        else:
            theirs, moved = _ungrouped(own, tensor, view.attention)
            found[place + theirs] = moved
    full = next((view for view in views.values() if not isinstance(view.attention, Mamba2Config)), model)
    for name, tensor in to_qwen2(others, full).items():
        for ours, theirs in BACKBONE.items():
            name = name.replace(ours, theirs)
        found[name] = tensor
    return found


def _ungrouped(name: str, tensor: torch.Tensor, mamba: Mamba2Config) -> tuple[str, torch.Tensor]:
    """Collect what lies by key heads in ours: gates z, values x, keys B, queries C and steps, one after another."""
    heads = mamba.heads // mamba.key_heads
    values = heads * mamba.value_dim
    by_head = tensor.unflatten(0, (mamba.key_heads, -1))
    if name != "linear_in.weight":
        parts = by_head.split([mamba.key_dim, mamba.key_dim, values], dim=1)
        query, key, value = (each.flatten(0, 1) for each in parts)
        joined = torch.cat([value, key, query])
        return ("conv1d.weight", joined[:, None]) if name == "conv_weight" else ("conv1d.bias", joined)
    parts = by_head.split([mamba.key_dim, mamba.key_dim, values, values, heads], dim=1)
    query, key, value, gate, step = (each.flatten(0, 1) for each in parts)
    return "in_proj.weight", torch.cat([gate, value, key, query, step])
