"""The oracle of Gated DeltaNet: transformers' Qwen3.5 in float64, with the rule as it is written, token by token.

Its own chunks are in float32 whatever the model is in, and take decays as differences of sums: on the tests' models the
gradients of A_log are then 2e-4 off, where ours are within 2e-5.
"""

from __future__ import annotations

import functools
import sys

import pytest
import torch
from oracles import recurrent
from oracles.qwen2 import multiply_embedding
from oracles.qwen3_next import renamed as renamed_attention
from oracles.recurrent import EAGER, by_token, within

from efficientbench.architecture.gdn import GDNConfig
from efficientbench.architecture.model import ModelConfig

__all__ = ["EAGER", "renamed", "same_weights"]

with pytest.MonkeyPatch.context() as _patch:
    # The module keeps what it finds when it is first loaded, and fla's kernels need a GPU.
    _patch.setitem(sys.modules, "fla", None)
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
    from transformers.models.qwen3_5 import modeling_qwen3_5

written_rule = functools.partial(by_token, modeling_qwen3_5, "torch_chunk_gated_delta_rule")
throughout_in_float64 = functools.partial(recurrent.throughout_in_float64, written_rule)
ZERO_CENTRED = ("layernorm.weight", "_norm.weight", "model.norm.weight")
"""Ends of the names of the norms that multiply by 1 + w; the gated one is `linear_attn.norm`."""
RECURRENT = {"A_log": "A_log", "dt_bias": "dt_bias", "out_norm": "norm.weight", "linear_proj.weight": "out_proj.weight"}


def qwen3_5_config(model: ModelConfig) -> Qwen3_5TextConfig:
    """The configuration of the same architecture; layers of another kind have gated attention."""
    views = [model.views[name] for name in model.layer_kinds]
    gdn = next(view.attention for view in views if isinstance(view.attention, GDNConfig))
    full = next((view for view in views if not isinstance(view.attention, GDNConfig)), model)
    return Qwen3_5TextConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=full.key_value_heads,
        head_dim=model.head_dim,
        rms_norm_eps=model.norm_epsilon,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": full.position.rope_base or 1e4,
            "partial_rotary_factor": full.rotated_dim / model.head_dim,
        },
        layer_types=[
            "linear_attention" if isinstance(view.attention, GDNConfig) else "full_attention" for view in views
        ],
        linear_num_key_heads=gdn.key_heads,
        linear_num_value_heads=gdn.heads,
        linear_key_head_dim=gdn.key_dim,
        linear_value_head_dim=gdn.value_dim,
        linear_conv_kernel_dim=gdn.convolution,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="eager",
    )


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> Qwen3_5ForCausalLM:
    """A float64 Qwen3.5 whose weights are `tensors`, by our global names."""
    oracle = Qwen3_5ForCausalLM(qwen3_5_config(model)).double()
    weights = {name: each - 1 if _is_zero_centred(name) else each for name, each in renamed(tensors, model).items()}
    missing, unexpected = oracle.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    multiply_embedding(oracle, model)
    return within(oracle, written_rule)


def as_ours(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return their weights with norms that multiply by w and not by 1 + w."""
    return {name: each + 1 if _is_zero_centred(name) else each for name, each in weights.items()}


def _is_zero_centred(name: str) -> bool:
    return name.endswith(ZERO_CENTRED) and "linear_attn" not in name


def renamed(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by Qwen3.5's names."""
    found: dict[str, torch.Tensor] = {}
    others, views = {}, model.views
    for name, tensor in tensors.items():
        before, _, own = name.partition(".self_attention.")
        view = views[model.layer_kinds[int(before.rpartition(".")[2])]] if own else None
        if view is None or not isinstance(view.attention, GDNConfig):
            others[name] = tensor
            continue
        place = before.replace("decoder.layers", "model.layers") + ".linear_attn."
        if own in RECURRENT:
            found[place + RECURRENT[own]] = tensor
        else:
            found |= {place + key: each for key, each in _ungrouped(own, tensor, view.attention).items()}
    full = next((view for view in views.values() if not isinstance(view.attention, GDNConfig)), model)
    return found | renamed_attention(others, full)


def _ungrouped(name: str, tensor: torch.Tensor, gdn: GDNConfig) -> dict[str, torch.Tensor]:
    """Collect what lies by key heads in ours: all queries, all keys, all values, and so on."""
    values = gdn.heads // gdn.key_heads
    sizes = [gdn.key_dim, gdn.key_dim, values * gdn.value_dim]
    if name == "conv_weight":
        parts = tensor.unflatten(0, (gdn.key_heads, -1)).split(sizes, dim=1)
        return {"conv1d.weight": torch.cat([each.flatten(0, 1) for each in parts])[:, None]}
    sizes += [values * gdn.value_dim, values, values]
    parts = tensor.unflatten(0, (gdn.key_heads, -1)).split(sizes, dim=1)
    *mixed, gate, beta, decay = (each.flatten(0, 1) for each in parts)
    return {
        "in_proj_qkv.weight": torch.cat(mixed),
        "in_proj_z.weight": gate,
        "in_proj_b.weight": beta,
        "in_proj_a.weight": decay,
    }
