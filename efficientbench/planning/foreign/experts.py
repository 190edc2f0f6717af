"""Readers of decoders with experts, and of those with latents instead of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from efficientbench.planning.foreign.decoder import DecoderShape, Experts, FeedForward
from efficientbench.planning.foreign.dense import (
    ALL,
    CHUNKED,
    FULL,
    LLAMA,
    SLIDING,
    Dense,
    Parts,
    Reader,
    every,
    is_set,
    late_windows,
)
from efficientbench.planning.foreign.keys import Keys
from efficientbench.planning.foreign.mixers import Latent, Mixer

COUNT = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
"""The names, in different classes, of the number of experts, of those that a token visits, and of shared ones."""
PREDICTED = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""The names of the number of layers that predict further tokens."""
Rule = Callable[[Keys], Callable[[int], bool]]
"""Says by the keys which layers have experts."""


def experts(
    keys: Keys, width: int, shared: int = 0, gate: bool = False, matrices: int = 3, bias: bool = False
) -> Experts:
    """Return experts of a width with shared ones, whose widths add up to `shared`; `gate`: whether these have one."""
    hidden, count, top_k = keys.number("hidden_size"), keys.number(*COUNT), keys.number(*TOP_K)
    if top_k > count:
        keys.refuse(f"{TOP_K[0]} is {top_k}, more than the {count} experts")
    together = FeedForward(hidden, shared, matrices, bias) if shared else None
    return Experts(FeedForward(hidden, width, matrices, bias), count, top_k, together, gate, router_bias=bias)


def predicted(keys: Keys) -> tuple[str, ...]:
    """Return the note on layers that predict further tokens, which transformers does not build."""
    keys.ignore("mtp_layers_block_type", "mtp_hybrid_override_pattern", "mtp_use_dedicated_embeddings", *PREDICTED)
    found = next((each for name in PREDICTED if (each := keys.get(name, default=0))), 0)
    if not found:
        return ()
    return (f"{found} further layer{'s' if found != 1 else ''} for multi-token prediction: left out of every figure",)


def everywhere(keys: Keys) -> Callable[[int], bool]:
    """Say that all layers have experts."""
    return lambda layer: True


def after_first(default: int) -> Rule:
    """Return the rule by which all but the first layers have experts, or those that `mlp_layer_types` lists."""

    def rule(keys: Keys) -> Callable[[int], bool]:
        first, layers = keys.get("first_k_dense_replace", default=default), keys.number("num_hidden_layers")
        keys.only("moe_layer_freq", 1)
        types = ["sparse" if layer >= first else "dense" for layer in range(layers)]
        found = keys.listed("mlp_layer_types", layers, ("sparse", "dense"), types)
        return lambda layer: found[layer] == "sparse"

    return rule


def by_step(keys: Keys) -> Callable[[int], bool]:
    """Say which layers have experts in Qwen's models."""
    step, dense = keys.number("decoder_sparse_step", default=1), keys.get("mlp_only_layers", default=None) or []
    return lambda layer: (layer + 1) % step == 0 and layer not in dense


@dataclass(frozen=True)
class Sparse:
    """A decoder some of whose layers have experts instead of one feed-forward network."""

    dense: Dense = Dense()
    latent: int | None = None
    """`q_lora_rank` where the key is absent, in a class with latents; None: it has keys and values."""
    width: str = "intermediate_size"
    """The key of an expert's width."""
    shared: str = ""
    """The key of the width of shared experts together; empty: as many of an expert's width as a key of SHARED says."""
    gate: bool = False
    """Whether shared experts have a gate."""
    bias: bool = False
    """Whether experts and their router have biases."""
    rule: Rule = everywhere

    def __call__(self, keys: Keys) -> DecoderShape:
        layers = keys.number("num_hidden_layers")
        if self.latent is None:
            return self.around(keys, self.dense.attention(keys, layers))
        return self.around(keys, [latent(keys, self.latent)] * layers)

    def around(self, keys: Keys, mixers: Sequence[Mixer]) -> DecoderShape:
        """Return the decoder with these mixers, one for each layer."""
        is_sparse = self.rule(keys)
        if not any(map(is_sparse, range(len(mixers)))):
            keys.ignore(self.width, self.shared, *COUNT, *TOP_K, *SHARED)
            return built(keys, self.dense, mixers, is_sparse, None)
        width, number = keys.number(self.width), keys.get(*SHARED, default=0) or 0
        shared = keys.get(self.shared, default=0) if self.shared else number * width
        found = experts(keys, width, shared, self.gate, bias=self.bias)
        return built(keys, self.dense, mixers, is_sparse, with_shared_bias(keys, self.dense, found))


def with_shared_bias(keys: Keys, dense: Dense, found: Experts) -> Experts:
    """Return the experts with the biases that a dense layer has on the shared ones."""
    bias = is_set(keys, dense.ffn_bias)
    return replace(found, shared=replace(found.shared, bias=bias)) if found.shared and bias else found


def built(
    keys: Keys,
    dense: Dense,
    mixers: Sequence[Mixer],
    is_sparse: Callable[[int], bool],
    found: Experts | None,
    width: str = "intermediate_size",
) -> DecoderShape:
    """Return the decoder whose layers have experts or else one network; `width`: the key of that."""
    sparse = [found if is_sparse(layer) else None for layer in range(len(mixers))]
    network = None if all(sparse) else dense.feed_forward(keys, keys.number(width))
    keys.ignore(width)
    parts: Parts = [
        ((mixer,), tuple(filter(None, (each or network,)))) for mixer, each in zip(mixers, sparse, strict=True)
    ]
    return dense.decoder(keys, parts, predicted(keys))


def latent(keys: Keys, query_rank: int | None = None) -> Latent:
    """Return latent attention; `query_rank`: the class's default."""
    hidden, heads = keys.number("hidden_size"), keys.number("num_attention_heads")
    keys.only("num_key_value_heads", heads)
    keys.ignore("head_dim", "qk_head_dim")
    rank, nope, rope = (keys.number(name) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"))
    value_dim, bias = keys.maybe("v_head_dim") or hidden // heads, keys.flag("attention_bias", default=False)
    return Latent(hidden, heads, keys.maybe("q_lora_rank", default=query_rank), rank, nope, rope, value_dim, bias)


def _dense_latents(dense: Dense, query_rank: int) -> Reader:
    def read(keys: Keys) -> DecoderShape:
        network = dense.feed_forward(keys, keys.number("intermediate_size"))
        return dense.decoder(keys, [((latent(keys, query_rank),), (network,))] * keys.number("num_hidden_layers"))

    return read


def _qwen2_moe(keys: Keys) -> DecoderShape:
    last = keys.get("max_window_layers", default=28)
    dense = Dense(
        qkv_bias=("qkv_bias", True),
        groups=16,
        window=4096,
        window_key="use_sliding_window",
        pattern=lambda layer: SLIDING if layer % 2 == 0 and layer < last else FULL,
    )
    return replace(QWEN, dense=dense)(keys)


def _ernie(keys: Keys) -> DecoderShape:
    dense, layers = Dense(*3 * ("use_bias",), "use_bias", groups=4, tied=True), keys.number("num_hidden_layers")
    first, step = keys.get("moe_layer_start_index", default=1), keys.number("moe_layer_interval", default=1)
    last = keys.get("moe_layer_end_index", default=-1) % layers
    width = keys.number("moe_intermediate_size")
    found = experts(keys, width, keys.get(*SHARED, default=2) * width)
    # What corrects the choice of experts is a parameter here, though nothing trains it by gradients.
    found = with_shared_bias(keys, dense, replace(found, router_bias=True))
    mixers = dense.attention(keys, layers)
    return built(keys, dense, mixers, lambda layer: (layer + 1) % step == 0 and first <= layer <= last, found)


def _llama4(keys: Keys) -> DecoderShape:
    dense, layers = replace(ALL, groups=8, head_dim=128), keys.number("num_hidden_layers")
    keys.ignore("use_qk_norm")
    step, chunk = keys.number("interleave_moe_layer_step", default=1), keys.maybe("attention_chunk_size", default=8192)
    given, period = keys.get("moe_layers", default=None), keys.number("no_rope_layer_interval", default=4)
    sparse = range(step - 1, layers, step) if given is None else given
    rotated = keys.get("no_rope_layers", default=None) or [(layer + 1) % period for layer in range(layers)]
    types = keys.listed("layer_types", layers, (FULL, CHUNKED), [CHUNKED if each else FULL for each in rotated])
    one, width = dense.attention(keys, 1)[0], keys.number("intermediate_size")
    mixers = [replace(one, chunk=chunk if kind == CHUNKED else None) for kind in types]
    found = experts(keys, width, width)
    return built(keys, dense, mixers, lambda layer: layer in sparse, found, "intermediate_size_mlp")


def _mimo(keys: Keys) -> DecoderShape:
    dense, layers = Dense(qkv_bias="attention_bias", groups=4, head_dim=192), keys.number("num_hidden_layers")
    default = [FULL if layer == 0 or (layer + 1) % 6 == 0 else SLIDING for layer in range(layers)]
    types = keys.listed("layer_types", layers, (FULL, SLIDING), default)
    window = keys.maybe("sliding_window", default=129)
    one = replace(dense.attention(keys, 1)[0], window=None, value_dim=keys.number("v_head_dim", default=128))
    windowed = replace(one, groups=2 * one.groups, window=window, sinks=True)
    mixers = [windowed if kind == SLIDING else one for kind in types]
    return replace(DEEPSEEK, rule=after_first(1)).around(keys, mixers)


DEEPSEEK = Sparse(width="moe_intermediate_size", rule=after_first(3))
QWEN = Sparse(width="moe_intermediate_size", shared="shared_expert_intermediate_size", gate=True, rule=by_step)
_QWEN3 = replace(ALL, groups=4, norm="head", window_key="use_sliding_window")
_DOTS = replace(ALL, groups=32, norm="head", window=4096)
_GPT_OSS_BIAS = ("attention_bias", True)
_GLM = Dense(qkv_bias="attention_bias", groups=8, norm="head", norm_key="use_qk_norm")

EXPERTS: dict[str, Reader] = {
    "deepseek_v2": replace(DEEPSEEK, dense=LLAMA, latent=1536, rule=after_first(0)),
    "deepseek_v3": replace(DEEPSEEK, latent=1536),
    "dots1": lambda keys: replace(DEEPSEEK, dense=late_windows(keys, _DOTS, 62), rule=after_first(0))(keys),
    "ernie4_5_moe": _ernie,
    "flex_olmo": Sparse(replace(ALL, norm="width")),
    "glm4_moe": replace(DEEPSEEK, dense=_GLM, rule=after_first(1)),
    "glm4_moe_lite": replace(DEEPSEEK, latent=768, rule=after_first(1)),
    "gpt_oss": Sparse(
        Dense(_GPT_OSS_BIAS, _GPT_OSS_BIAS, groups=8, head_dim=64, sinks=True, window=128, pattern=every(2, 1)),
        bias=True,
    ),
    "granitemoe": Sparse(ALL),
    "granitemoeshared": Sparse(ALL, shared="shared_intermediate_size"),
    "hunyuan_v1_moe": Sparse(replace(ALL, norm="head"), shared="intermediate_size"),
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo,
    "minicpm3": _dense_latents(Dense(ffn_bias="mlp_bias", tied=True), 768),
    "minimax_m2": Sparse(Dense(groups=8, head_dim=128, norm="width")),
    "mixtral": Sparse(Dense(groups=8)),
    "olmoe": Sparse(replace(ALL, norm="width")),
    "phimoe": Sparse(replace(ALL, head_bias="lm_head_bias", groups=8, norm_width=2)),
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": Sparse(_QWEN3, width="moe_intermediate_size", rule=by_step),
    "solar_open": replace(DEEPSEEK, dense=replace(_GLM, norm="", head_dim=128), rule=after_first(0)),
    "youtu": _dense_latents(Dense(tied=True), 1536),
}
"""The reader of each model type."""
