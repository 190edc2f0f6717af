"""The oracle of Kimi Delta Attention: transformers' Kimi Linear in float64, with the rule as written, token by token.

Its other layers are MLA without positions, and its feed-forward layers dense.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping

import pytest
import torch
from oracles import recurrent
from oracles.qwen2 import multiply_embedding, to_qwen2
from oracles.recurrent import EAGER, by_token, within

from efficientbench.architecture.kda import KDAConfig
from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.model import ModelConfig

__all__ = ["EAGER", "renamed", "same_weights"]

with pytest.MonkeyPatch.context() as _patch:
    # The module keeps what it finds when it is first loaded, and fla's kernels need a GPU.
    _patch.setitem(sys.modules, "fla", None)
    from transformers import KimiLinearConfig, KimiLinearForCausalLM
    from transformers.models.kimi_linear import modeling_kimi_linear

written_rule = functools.partial(by_token, modeling_kimi_linear, "chunk_kimi_delta_attention")
throughout_in_float64 = functools.partial(recurrent.throughout_in_float64, written_rule)
RENAMED = {
    "dt_bias": "forget_gate.dt_bias",
    "linear_decay.weight": "forget_gate.f_b_proj.weight",
    "linear_gate.weight": "g_b_proj.weight",
    "out_norm": "o_norm.weight",
    "linear_proj.weight": "o_proj.weight",
}
"""Tensors of the recurrent layer that are only renamed: ours → theirs."""
LATENT = {
    "linear_q_proj.weight": "q_proj.weight",
    "linear_kv_down_proj.weight": "kv_a_proj_with_mqa.weight",
    "kv_layernorm.weight": "kv_a_layernorm.weight",
    "linear_kv_up_proj.weight": "kv_b_proj.weight",
    "linear_proj.weight": "o_proj.weight",
}
"""Tensors of MLA, ours → theirs; without positions no row is rotated."""


def kimi_linear_config(model: ModelConfig) -> KimiLinearConfig:
    """The configuration of the same architecture."""
    attentions = [model.views[name].attention for name in model.layer_kinds]
    kda = next(each for each in attentions if isinstance(each, KDAConfig))
    mla = next((each for each in attentions if isinstance(each, MLAConfig)), None)
    return KimiLinearConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.heads,
        rms_norm_eps=model.norm_epsilon,
        layer_types=["linear_attention" if isinstance(each, KDAConfig) else "full_attention" for each in attentions],
        mlp_layer_types=["dense"] * model.layers,
        linear_num_heads=kda.key_heads,
        linear_head_dim=kda.key_dim,
        linear_conv_kernel_dim=kda.convolution,
        pad_token_id=None,
        use_cache=False,
        attn_implementation="eager",
        **({} if mla is None else mla.model_dump(exclude={"kind"})),
    )


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> KimiLinearForCausalLM:
    """A float64 Kimi Linear whose weights are `tensors`, by our global names."""
    oracle = KimiLinearForCausalLM(kimi_linear_config(model)).double()
    oracle.lm_head.weight = oracle.model.embed_tokens.weight
    for layer in oracle.model.layers:
        if hasattr(layer.self_attn, "kv_a_layernorm"):
            layer.self_attn.kv_a_layernorm.variance_epsilon = model.norm_epsilon
    missing, unexpected = oracle.load_state_dict(renamed(tensors, model), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    multiply_embedding(oracle, model)
    return within(oracle, written_rule)


def renamed(tensors: Mapping[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by Kimi Linear's names."""
    found: dict[str, torch.Tensor] = {}
    others: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        before, _, own = name.partition(".self_attention.")
        if not own:
            others[name] = tensor
            continue
        attention = model.views[model.layer_kinds[int(before.rpartition(".")[2])]].attention
        place = before.replace("decoder.layers", "model.layers") + ".self_attn."
        if isinstance(attention, KDAConfig):
            found |= {place + key: each for key, each in _parted(own, tensor, attention).items()}
        else:
            found[place + LATENT[own]] = tensor
    return found | to_qwen2(others, model)


def _parted(own: str, tensor: torch.Tensor, kda: KDAConfig) -> dict[str, torch.Tensor]:
    """Collect what lies by heads in ours: all queries, all keys, all values, and all strengths."""
    if own == "A_log":
        return {"forget_gate.A_log": tensor.view(1, 1, -1, 1)}
    if own in RENAMED:
        return {RENAMED[own]: tensor}
    if own == "linear_low.weight":
        return dict(zip(("forget_gate.f_a_proj.weight", "g_a_proj.weight"), tensor.chunk(2), strict=True))
    by_head = tensor.unflatten(0, (kda.key_heads, -1))
    if own == "conv_weight":
        return {"conv1d.weight": torch.cat([each.flatten(0, 1) for each in by_head.chunk(3, dim=1)])[:, None]}
    parts = by_head.split([*[kda.key_dim] * 3, 1], dim=1)
    return {f"{letter}_proj.weight": each.flatten(0, 1) for letter, each in zip("qkvb", parts, strict=True)}
