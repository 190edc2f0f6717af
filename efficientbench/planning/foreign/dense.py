"""Readers of dense decoders: one `Dense` says how a class of transformers 5 differs from Llama's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from efficientbench.planning.foreign.decoder import DecoderShape, Experts, FeedForward, Layer
from efficientbench.planning.foreign.keys import Keys
from efficientbench.planning.foreign.mixers import Attention, Mixer

Bias = bool | str | tuple[str, bool]
"""Whether there is a bias, or the key that says it, with what it says where it is absent; without that: false."""
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
Reader = Callable[[Keys], DecoderShape]
Networks = tuple[FeedForward | Experts, ...]
Parts = Sequence[tuple[tuple[Mixer, ...], Networks]]
"""The mixers and the feed-forward networks of each layer."""


def every(period: int, rest: int, kind: str = FULL, others: str = SLIDING) -> Callable[[int], str]:
    """Return the rule by which layers i, with i % period == rest, are of a kind, and the others of another."""
    return lambda layer: kind if layer % period == rest else others


@dataclass(frozen=True)
class Dense:
    """A decoder whose layers have attention and one feed-forward network. Defaults are those of the class's keys."""

    qkv_bias: Bias = False
    output_bias: Bias = False
    ffn_bias: Bias = False
    head_bias: Bias = False
    """The bias on the logits."""
    groups: int | None = None
    """`num_key_value_heads` where the key is absent; None: as many as heads."""
    head_dim: int | None = None
    """`head_dim` where the key is absent; None: hidden_size / heads."""
    own_head_dim: bool = True
    """Whether the class reads `head_dim`, if it is there."""
    gate: bool = False
    sinks: bool = False
    norm: Literal["", "head", "width", "each head"] = ""
    """Norms on queries and keys: none, of a head's width, of all heads together, of each head its own."""
    norm_key: str | None = None
    """The key that says whether there are these norms."""
    norms: int = 2
    """Norms of a layer on the residual stream."""
    norm_width: int = 1
    """Parameters of a norm per channel: 2 with a bias, 0 without weights."""
    matrices: int = 3
    further: int = 0
    """Parameters of each layer's activation."""
    tied: bool = False
    window: int | None = None
    """`sliding_window` where the key is absent."""
    window_key: str | None = None
    """The key without which `sliding_window` has no effect."""
    pattern: Callable[[int], str] | None = None
    """The type of each layer where `layer_types` is absent; None: the class has no types, and a window is in all."""
    pattern_key: str | None = None
    """The key of older files with the period of `pattern`, whose last layer is full."""

    def __call__(self, keys: Keys) -> DecoderShape:
        layers = keys.number("num_hidden_layers")
        mlp = self.feed_forward(keys, keys.number("intermediate_size"))
        mixers = self.attention(keys, layers)
        return self.decoder(keys, [((mixer,), (mlp,)) for mixer in mixers])

    def feed_forward(self, keys: Keys, width: int) -> FeedForward:
        """Return a feed-forward network of a width."""
        hidden = keys.number("hidden_size")
        return FeedForward(hidden, width, self.matrices, is_set(keys, self.ffn_bias), self.further)

    def attention(self, keys: Keys, layers: int) -> list[Attention]:
        """Return the attention of each layer."""
        hidden, heads = keys.number("hidden_size"), keys.number("num_attention_heads")
        groups = keys.maybe("num_key_value_heads", default=self.groups) or heads
        if not self.own_head_dim:
            keys.only("head_dim", hidden // heads)
        dim = keys.maybe("head_dim", default=self.head_dim) or hidden // heads
        one = Attention(
            hidden=hidden,
            heads=heads,
            groups=groups,
            key_dim=dim,
            value_dim=dim,
            qkv_bias=is_set(keys, self.qkv_bias),
            output_bias=is_set(keys, self.output_bias),
            gate=self.gate,
            sinks=self.sinks,
            norm=self._head_norms(keys, heads, groups, dim),
        )
        window = self._window(keys)
        if self.pattern is None:
            return [replace(one, window=window)] * layers
        types = keys.listed("layer_types", layers, (FULL, SLIDING), self.types(keys, layers))
        return [replace(one, window=window if kind == SLIDING else None) for kind in types]

    def _window(self, keys: Keys) -> int | None:
        if self.window_key is not None and not keys.flag(self.window_key, default=False):
            keys.ignore("sliding_window")
            return None
        return keys.maybe("sliding_window", default=self.window)

    def types(self, keys: Keys, layers: int) -> list[str]:
        """Return the types of the layers for an absent `layer_types`."""
        rule = self.pattern or every(1, 0)
        if self.pattern_key is not None and (period := keys.maybe(self.pattern_key)):
            rule = every(period, period - 1)
        return [rule(layer) for layer in range(layers)]

    def _head_norms(self, keys: Keys, heads: int, groups: int, dim: int) -> int:
        if not self.norm or (self.norm_key is not None and not keys.flag(self.norm_key, default=False)):
            return 0
        width = self.norm_width if self.norm == "head" else 1
        return width * (2 * dim if self.norm == "head" else (heads + groups) * dim)

    def decoder(self, keys: Keys, layers: Parts, notes: tuple[str, ...] = ()) -> DecoderShape:
        """Return the decoder with these mixers and feed-forward networks, one entry for each layer."""
        hidden, vocabulary = keys.number("hidden_size"), keys.number("vocab_size")
        norm = self.norm_width * hidden
        counted: dict[Layer, int] = {}
        for mixers, networks in layers:
            layer = Layer(mixers, networks, self.norms * norm)
            counted[layer] = counted.get(layer, 0) + 1
        return DecoderShape(
            model_type=str(keys.get("model_type")),
            hidden=hidden,
            vocabulary=vocabulary,
            layers=tuple(counted.items()),
            tied=keys.flag("tie_word_embeddings", default=self.tied),
            further=norm + (vocabulary if is_set(keys, self.head_bias) else 0),
            notes=notes,
        )


def is_set(keys: Keys, bias: Bias) -> bool:
    """Return whether there is a bias: `bias` itself, or what its key says."""
    if isinstance(bias, bool):
        return bias
    name, default = (bias, False) if isinstance(bias, str) else bias
    return keys.flag(name, default=default)


ALL = Dense(qkv_bias="attention_bias", output_bias="attention_bias")
"""Biases on all four projections, by one key."""
LLAMA = replace(ALL, ffn_bias="mlp_bias")
_GEMMA = replace(ALL, head_dim=256, groups=4, tied=True, window=4096, pattern=every(2, 1))
_COHERE = replace(ALL, norms=1, tied=True)
_USE_BIAS = ("use_bias", True)
_GLM = Dense(qkv_bias=("attention_bias", True), groups=2, head_dim=128)


def _gpt_neox(keys: Keys) -> DecoderShape:
    keys.only("use_parallel_residual", True, False)
    keys.only("is_decoder", True, False)
    bias = keys.flag("attention_bias", default=True)
    return Dense(qkv_bias=bias, output_bias=bias, ffn_bias=True, own_head_dim=False, norm_width=2, matrices=2)(keys)


def _named(keys: Keys, hidden: str = "n_embd", further: Mapping[str, int | None] | None = None) -> Keys:
    """Return the keys of a class under Llama's names; `further`: others with their values, None for an unset one."""
    width = keys.number(hidden, "hidden_size")
    named = {
        "hidden_size": width,
        "num_attention_heads": keys.number("num_attention_heads", "n_head"),
        "num_hidden_layers": keys.number("num_hidden_layers", "n_layer"),
        "intermediate_size": 4 * width,
    }
    return keys.under({**named, **{key: value for key, value in (further or {}).items() if value is not None}})


def _gpt2(keys: Keys) -> DecoderShape:
    keys.only("add_cross_attention", False)
    positions = keys.number("n_positions", "max_position_embeddings")
    named = _named(keys, further={"intermediate_size": keys.maybe("n_inner")})
    shape = Dense(True, True, True, own_head_dim=False, norm_width=2, matrices=2, tied=True)(named)
    return replace(shape, further=shape.further + positions * shape.hidden, positions=positions)


def _gptj(keys: Keys) -> DecoderShape:
    keys.ignore("n_positions")
    named = _named(keys, further={"intermediate_size": keys.maybe("n_inner")})
    return Dense(ffn_bias=True, head_bias=True, own_head_dim=False, norms=1, norm_width=2, matrices=2)(named)


def _bloom(keys: Keys) -> DecoderShape:
    dense = Dense(True, True, True, own_head_dim=False, norm_width=2, matrices=2, tied=True)
    shape = dense(_named(keys, "n_embed"))
    return replace(shape, further=shape.further + 2 * shape.hidden)


def _opt(keys: Keys) -> DecoderShape:
    hidden = keys.number("hidden_size")
    keys.only("word_embed_proj_dim", hidden)
    keys.only("_remove_final_layer_norm", False)
    for name in ("do_layer_norm_before", "layer_norm_elementwise_affine"):
        keys.only(name, True)
    bias = ("enable_bias", True)
    dense = Dense(bias, bias, bias, own_head_dim=False, norm_width=2, matrices=2, tied=True)
    shape = dense(keys.under({"intermediate_size": keys.number("ffn_dim")}))
    positions = keys.number("max_position_embeddings")
    # The first two rows are those of padding.
    return replace(shape, further=shape.further + (positions + 2) * hidden, positions=positions)


def _falcon(keys: Keys) -> DecoderShape:
    new, multi = keys.flag("new_decoder_architecture", default=False), keys.flag("multi_query", default=True)
    heads = keys.number("num_attention_heads", "n_head")
    given = keys.maybe("num_kv_heads", "n_head_kv") or heads
    both = keys.maybe("num_ln_in_parallel_attn", default=2 if new else 1) == 2
    norms = 2 if both or not keys.flag("parallel_attn", default=True) else 1
    groups = given if new else 1 if multi else heads
    width = keys.maybe("ffn_hidden_size")
    named = _named(keys, "n_embed", {"num_key_value_heads": groups, "intermediate_size": width})
    return Dense("bias", "bias", "bias", own_head_dim=False, norms=norms, norm_width=2, matrices=2, tied=True)(named)


def _stablelm(keys: Keys) -> DecoderShape:
    parallel = keys.flag("use_parallel_residual", default=False)
    return Dense(
        qkv_bias="use_qkv_bias",
        groups=32,
        own_head_dim=False,
        norm="each head",
        norm_key="qk_layernorm",
        norms=1 if parallel else 2,
        norm_width=2,
    )(keys)


def _gemma3(keys: Keys) -> DecoderShape:
    keys.only("use_bidirectional_attention", False)
    return replace(_GEMMA, norm="head", norms=4, pattern=every(6, 5), pattern_key="sliding_window_pattern")(keys)


def _exaone4(keys: Keys) -> DecoderShape:
    return Dense(
        groups=32,
        norm="head",
        window=4096,
        pattern=every(4, 3) if keys.get("sliding_window", default=4096) else every(1, 0),
        pattern_key="sliding_window_pattern" if keys.get("sliding_window_pattern", default=4) else None,
    )(keys)


def late_windows(keys: Keys, dense: Dense, default: int) -> Dense:
    """Return the decoder whose windows begin at the layer `max_window_layers`."""
    first = keys.get("max_window_layers", default=default)
    return replace(dense, pattern=lambda layer: SLIDING if layer >= first else FULL)


_QWEN2 = Dense(qkv_bias=True, groups=32, window=4096, window_key="use_sliding_window")
_QWEN3 = replace(ALL, groups=32, head_dim=128, norm="head", window=4096, window_key="use_sliding_window")

DENSE: dict[str, Reader] = {
    "apertus": replace(ALL, norm="head", matrices=2, further=2),
    "arcee": replace(ALL, ffn_bias="mlp_bias", matrices=2),
    "bloom": _bloom,
    "cohere": replace(_COHERE, norm="width", norm_key="use_qk_norm"),
    "cohere2": replace(
        _COHERE, own_head_dim=False, window=4096, pattern=every(4, 3), pattern_key="sliding_window_pattern"
    ),
    "cwm": Dense(ffn_bias="mlp_bias", groups=8, head_dim=128, window=8192, pattern=every(4, 0)),
    "ernie4_5": Dense("use_bias", "use_bias", "use_bias", groups=2, head_dim=128, tied=True),
    "exaone4": _exaone4,
    "falcon": _falcon,
    "gemma": replace(ALL, groups=16, head_dim=256, tied=True),
    "gemma2": replace(_GEMMA, norms=4),
    "gemma3_text": _gemma3,
    "glm": _GLM,
    "glm4": replace(_GLM, norms=4),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "granite": replace(ALL, ffn_bias="mlp_bias"),
    "granite_swa": replace(ALL, ffn_bias="mlp_bias", groups=4, sinks=True, tied=True, window=128, pattern=every(4, 0)),
    "helium": Dense(qkv_bias="attention_bias", ffn_bias="mlp_bias", groups=20, head_dim=128),
    "hunyuan_v1_dense": replace(ALL, norm="head"),
    "llama": LLAMA,
    "ministral": Dense(groups=8, window=4096, pattern=every(1, 0, SLIDING)),
    "ministral3": Dense(groups=8, head_dim=128),
    "mistral": Dense(groups=8, window=4096),
    "nanochat": replace(ALL, norm_width=0, matrices=2),
    "nemotron": replace(ALL, ffn_bias="mlp_bias", norm_width=2, matrices=2),
    "olmo": replace(ALL, norm_width=0),
    "olmo2": replace(ALL, norm="width"),
    "olmo3": replace(ALL, norm="width", window=4096, pattern=every(4, 3)),
    "opt": _opt,
    "phi": Dense(True, True, True, True, norm="head", norm_key="qk_layernorm", norms=1, norm_width=2, matrices=2),
    "phi3": Dense(),
    "qwen2": lambda keys: late_windows(keys, _QWEN2, 28)(keys),
    "qwen3": lambda keys: late_windows(keys, _QWEN3, 28)(keys),
    "seed_oss": Dense(("attention_bias", True), "attention_out_bias", "mlp_bias", groups=8, head_dim=128),
    "smollm3": replace(LLAMA, groups=4, tied=True, window_key="use_sliding_window", pattern=every(1, 0)),
    "stablelm": _stablelm,
    "starcoder2": Dense(_USE_BIAS, _USE_BIAS, _USE_BIAS, groups=2, norm_width=2, matrices=2, tied=True),
    "vaultgemma": _GEMMA,
}
"""The reader of each model type."""
