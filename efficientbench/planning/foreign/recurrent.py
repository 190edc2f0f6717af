"""Readers of decoders with recurrent layers, alone or among others, and of those with short convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from efficientbench.planning.foreign.decoder import DecoderShape
from efficientbench.planning.foreign.dense import ALL, FULL, LINEAR, Dense, Networks, Parts, every
from efficientbench.planning.foreign.experts import (
    DEEPSEEK,
    QWEN,
    SHARED,
    TOP_K,
    after_first,
    experts,
    latent,
    predicted,
)
from efficientbench.planning.foreign.keys import Keys
from efficientbench.planning.foreign.mixers import (
    Mixer,
    Recurrent,
    delta_net,
    kimi_delta,
    mamba,
    mamba2,
    short_convolution,
)

_QWEN3_NEXT = replace(ALL, groups=2, head_dim=256, gate=True, norm="head")


def _types(keys: Keys, default: Sequence[str] | None, other: str = LINEAR) -> list[str]:
    """Return the type of each layer; `layers_block_type` is the key's older name."""
    name = "layer_types" if keys.get("layers_block_type", default=None) is None else "layers_block_type"
    keys.ignore("layer_types")
    return keys.listed(name, keys.number("num_hidden_layers"), (FULL, other), default)


def _every_fourth(keys: Keys) -> list[str]:
    """Return the type of each layer, where every fourth has full attention unless the keys say otherwise."""
    period = keys.number("full_attention_interval", default=4)
    rule = every(period, period - 1, FULL, LINEAR)
    return _types(keys, [rule(layer) for layer in range(keys.number("num_hidden_layers"))])


def _mixed(keys: Keys, dense: Dense, types: Sequence[str], other: Mixer) -> list[Mixer]:
    attention = dense.attention(keys, 1)[0]
    return [attention if kind == FULL else other for kind in types]


def _alike(keys: Keys, dense: Dense, mixers: Sequence[Mixer], networks: Networks | None = None) -> DecoderShape:
    """Return the decoder all of whose layers have the same feed-forward networks; None: one of intermediate_size."""
    networks = networks or (dense.feed_forward(keys, keys.number("intermediate_size")),)
    return dense.decoder(keys, [((mixer,), networks) for mixer in mixers], predicted(keys))


def _delta_net(keys: Keys, heads: int | None = None) -> Recurrent:
    """Return Gated DeltaNet; `heads`: the default of heads of keys and of values, None: 16 and 32."""
    hidden, kernel = keys.number("hidden_size"), keys.number("linear_conv_kernel_dim", default=4)
    key_heads = keys.maybe("linear_num_key_heads") or heads or 16
    key_dim = keys.maybe("linear_key_head_dim") or (int(0.75 * hidden / key_heads) if heads else 128)
    value_heads = keys.maybe("linear_num_value_heads") or heads or 32
    value_dim = keys.maybe("linear_value_head_dim") or (2 * key_dim if heads else 128)
    return delta_net(hidden, key_heads, value_heads, key_dim, value_dim, kernel)


def _qwen(keys: Keys, groups: int = 2) -> DecoderShape:
    """Read Qwen3-Next and Qwen3.5, with experts where there is a key for their width."""
    dense = replace(_QWEN3_NEXT, groups=groups)
    keys.ignore("attn_output_gate")
    mixers = _mixed(keys, dense, _every_fourth(keys), _delta_net(keys))
    if keys.get("moe_intermediate_size", default=None) is not None:
        return replace(QWEN, dense=dense).around(keys, mixers)
    return _alike(keys, dense, mixers)


def _olmo_hybrid(keys: Keys) -> DecoderShape:
    dense = replace(ALL, norm="width")
    recurrent = _delta_net(keys, keys.number("num_attention_heads"))
    return _alike(keys, dense, _mixed(keys, dense, _every_fourth(keys), recurrent))


def _kimi_linear(keys: Keys) -> DecoderShape:
    layers = keys.number("num_hidden_layers")
    inner = Keys(f"{keys.where}: linear_attn_config", keys.get("linear_attn_config", default={}) or {})
    heads = inner.maybe("num_heads") or keys.number("linear_num_heads", default=32)
    dim = inner.maybe("head_dim") or keys.number("linear_head_dim", default=128)
    kernel = inner.maybe("short_conv_kernel_size") or keys.number("linear_conv_kernel_dim", default=4)
    full, own = (inner.get(name, default=None) for name in ("full_attn_layers", "kda_layers"))
    inner.finish()
    default = [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(layers)]
    if full is not None and own is not None:
        if sorted([*full, *own]) != list(range(1, layers + 1)):
            keys.refuse(f"linear_attn_config: its lists are not the layers from 1 to {layers}")
        default = [FULL if layer in full else LINEAR for layer in range(1, layers + 1)]
    recurrent, full_layer = kimi_delta(keys.number("hidden_size"), heads, dim, kernel), latent(keys)
    mixers: list[Mixer] = [full_layer if kind == FULL else recurrent for kind in _types(keys, default)]
    keys.ignore("mla_use_nope")
    return replace(DEEPSEEK, rule=after_first(1)).around(keys, mixers)


def _mamba2_layer(
    keys: Keys, inner: int | None = None, norm: bool = True, out_bias: str = "mamba_proj_bias"
) -> Recurrent:
    """Return Mamba-2 by the keys that Bamba, Falcon-H1 and Granite 4 share; `inner`: its width, by default expanded."""
    hidden, heads = keys.number("hidden_size"), keys.number("mamba_n_heads", default=128)
    width = keys.number("mamba_expand", default=2) * hidden if inner is None else inner
    _check_heads(keys, "mamba_d_head", heads, width)
    groups, states = keys.number("mamba_n_groups", default=1), keys.number("mamba_d_state", default=256)
    biases = (
        keys.flag("mamba_proj_bias", default=False),
        keys.flag("mamba_conv_bias", default=True),
        keys.flag(out_bias, default=False),
    )
    return mamba2(hidden, width, heads, groups, states, keys.number("mamba_d_conv", default=4), biases, norm)


def _check_heads(keys: Keys, name: str, heads: int, width: int) -> None:
    """Refuse heads that are not together as wide as the mixer; `name`: the key of a head's width."""
    dim = keys.get(name, default="auto")
    if dim != "auto" and dim * heads != width:
        keys.refuse(f"{name} is {dim}, and {heads} heads of it are not {width} wide")


def _bamba(keys: Keys) -> DecoderShape:
    dense, layers = replace(ALL, ffn_bias="mlp_bias", groups=8), keys.number("num_hidden_layers")
    full = keys.get("attn_layer_indices", default=None) or []
    types = _types(keys, [FULL if layer in full else LINEAR for layer in range(layers)])
    return _alike(keys, dense, _mixed(keys, dense, types, _mamba2_layer(keys)))


def _falcon_h1(keys: Keys) -> DecoderShape:
    dense, norm = replace(ALL, ffn_bias="mlp_bias", groups=8), keys.flag("mamba_rms_norm", default=False)
    mixer = _mamba2_layer(keys, keys.maybe("mamba_d_ssm", default=1024), norm, "projectors_bias")
    keys.ignore("layers_block_type", "layer_types", "mamba_use_mlp", "mamba_expand")
    network = dense.feed_forward(keys, keys.number("intermediate_size"))
    layer = ((dense.attention(keys, 1)[0], mixer), (network,))
    return dense.decoder(keys, [layer] * keys.number("num_hidden_layers"))


def _granite_hybrid(keys: Keys) -> DecoderShape:
    dense, layers = ALL, keys.number("num_hidden_layers")
    mixers = _mixed(keys, dense, _types(keys, [LINEAR] * layers), _mamba2_layer(keys))
    networks: Networks = (dense.feed_forward(keys, keys.number("shared_intermediate_size", default=1024)),)
    width = keys.number("intermediate_size")
    keys.ignore(*TOP_K)
    if keys.get("num_local_experts", default=8):
        networks = (experts(keys, width), *networks)
    return _alike(keys, dense, mixers, networks)


def _mamba2(keys: Keys) -> DecoderShape:
    hidden, heads = keys.number("hidden_size"), keys.number("num_heads")
    width, bias = int(keys.get("expand", default=2) * hidden), keys.flag("use_bias", default=False)
    _check_heads(keys, "head_dim", heads, width)
    keys.ignore("time_step_rank", "intermediate_size")
    groups, states = keys.number("n_groups", default=8), keys.number("state_size", default=128)
    biases = (bias, keys.flag("use_conv_bias", default=True), bias)
    mixer = mamba2(hidden, width, heads, groups, states, keys.number("conv_kernel", default=4), biases, norm=True)
    return Dense(norms=1).decoder(keys, [((mixer,), ())] * keys.number("num_hidden_layers"))


def _mamba(keys: Keys) -> DecoderShape:
    hidden, states = keys.number("hidden_size"), keys.number("state_size", default=16)
    is_auto = keys.get("time_step_rank", default="auto") == "auto"
    rank = math.ceil(hidden / 16) if is_auto else keys.number("time_step_rank")
    keys.ignore("d_inner", "d_model")
    expanded, kernel = int(keys.get("expand", default=2) * hidden), keys.number("conv_kernel", default=4)
    width = keys.number("intermediate_size", default=expanded)
    bias, convolution_bias = keys.flag("use_bias", default=False), keys.flag("use_conv_bias", default=True)
    mixer = mamba(hidden, width, states, rank, kernel, bias, convolution_bias)
    return Dense(norms=1, tied=True).decoder(keys, [((mixer,), ())] * keys.number("num_hidden_layers"))


_BLOCKS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
"""Letters of Nemotron-H's older key → types of its layers, each of which is one block alone."""


def _nemotron_h(keys: Keys) -> DecoderShape:
    dense = Dense(groups=8, head_dim=128, norms=1, matrices=2, ffn_bias="mlp_bias")
    given = keys.get("layers_block_type", "layer_types", default=None)
    if given is None:
        given = [_BLOCKS.get(each, each) for each in str(keys.get("hybrid_override_pattern"))]
    keys.ignore("num_hidden_layers", "hybrid_override_pattern", "layer_types", "attention_bias", "sliding_window")
    types = keys.listed("layers_block_type", len(given), tuple(_BLOCKS.values()), given)
    keys.only("moe_latent_size")
    keys.ignore("mamba_proj_bias", "expand", "mamba_expand", *SHARED)
    heads, bias = keys.number("mamba_num_heads", default=128), keys.flag("use_bias", default=False)
    width = heads * keys.number("mamba_head_dim", default=64)
    groups = keys.number("n_groups", "mamba_n_groups", default=8)
    states, kernel = keys.number("ssm_state_size", default=128), keys.number("conv_kernel", "mamba_d_conv", default=4)
    biases = (bias, keys.flag("use_conv_bias", "mamba_conv_bias", default=True), bias)
    mixer = mamba2(keys.number("hidden_size"), width, heads, groups, states, kernel, biases, norm=True)
    attention = replace(dense.attention(keys, 1)[0], window=None)
    network = dense.feed_forward(keys, keys.number("intermediate_size", default=21_504))
    of_kind: dict[str, tuple[tuple[Mixer, ...], Networks]] = {
        LINEAR: ((mixer,), ()),
        FULL: ((attention,), ()),
        "mlp": ((), (network,)),
    }
    if "moe" in types:
        shared, each = keys.number("moe_shared_expert_intermediate_size"), keys.number("moe_intermediate_size")
        found = experts(keys, each, shared, matrices=2, bias=network.bias)
        of_kind["moe"] = ((), (found,))
    keys.ignore(
        "moe_shared_expert_intermediate_size", "moe_intermediate_size", "num_experts_per_tok", "n_routed_experts"
    )
    return dense.decoder(keys, [of_kind[kind] for kind in types], predicted(keys))


def _lfm_mixers(keys: Keys, dense: Dense) -> list[Mixer]:
    layers, hidden = keys.number("num_hidden_layers"), keys.number("hidden_size")
    given = keys.get("full_attn_idxs", default=None)
    full = range(layers) if given is None else given
    convolution = short_convolution(
        hidden, keys.number("conv_L_cache", default=3), keys.flag("conv_bias", default=False)
    )
    types = _types(keys, [FULL if layer in full else "conv" for layer in range(layers)], "conv")
    return _mixed(keys, dense, types, convolution)


def _lfm2(keys: Keys) -> DecoderShape:
    dense = Dense(groups=8, norm="head", tied=keys.flag("tie_embedding", default=True))
    width = keys.number("block_ff_dim", "intermediate_size")
    multiple, factor = keys.number("block_multiple_of", default=256), keys.get("block_ffn_dim_multiplier", default=1.0)
    if keys.flag("block_auto_adjust_ff_dim", default=True):
        width = int(2 * width / 3)
        width = width if factor is None else multiple * -(-int(factor * width) // multiple)
    keys.ignore("block_dim")
    return _alike(keys, dense, _lfm_mixers(keys, dense), (dense.feed_forward(keys, width),))


def _lfm2_moe(keys: Keys) -> DecoderShape:
    dense = Dense(groups=8, norm="head", tied=keys.flag("tie_embedding", default=True))
    network, first = dense.feed_forward(keys, keys.number("intermediate_size")), keys.get("num_dense_layers", default=2)
    found = experts(keys, keys.number("moe_intermediate_size"))
    mixers = _lfm_mixers(keys, dense)
    parts: Parts = [((mixer,), (network if layer < first else found,)) for layer, mixer in enumerate(mixers)]
    return dense.decoder(keys, parts)


RECURRENT = {
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "falcon_mamba": _mamba,
    "granitemoehybrid": _granite_hybrid,
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "nemotron_h": _nemotron_h,
    "olmo_hybrid": _olmo_hybrid,
    "qwen3_5_moe_text": _qwen,
    "qwen3_5_text": lambda keys: _qwen(keys, groups=4),
    "qwen3_next": _qwen,
}
"""The reader of each model type."""
