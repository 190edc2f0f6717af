"""The classes of transformers: which layers each takes, and the keys of its configuration that say what layers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.positions import RopeConfig
from efficientbench.export.recurrent import FULL, recurrent_settings

Architecture = Literal[
    "qwen2",
    "llama",
    "mistral",
    "qwen3",
    "smollm3",
    "nanochat",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "granite_swa",
    "qwen3_5_text",
    "bamba",
    "kimi_linear",
]

# The parts that some classes have and others lack, as messages name them.
BIAS = "a bias on Q, K and V"
UNBIASED = "Q, K and V without a bias"
LATENT = "latent attention"
LATENT_ROPE = "latent attention with RoPE"
QK_NORM = "norms on queries and keys"
EXPERTS = "experts"
SIGMOIDS = "experts scored by sigmoids"
EXPERTS_BIAS = "a bias that balances experts"
EXPERTS_FACTOR = "a factor on the weights of experts"
UNNORMALIZED = "weights of experts that do not add up to 1"
SHARED = "shared experts"
FIRST_DENSE = "first layers without experts"
SOME_DENSE = "later layers without experts"
NOPE = "layers without RoPE"
WINDOW = "windows"
NO_WINDOW = "windows in some layers alone"
BASES = "layers that differ in position.base"
SINKS = "sinks"
GATES = "output gates"
ROPE_SHARE = "RoPE's share"
DELTA = "Gated DeltaNet"
MAMBA = "Mamba-2"
KDA = "Kimi Delta Attention"
CENTRED = "zero-centred norms"
NANOCHAT = "parts of nanochat"
LATENT_EPSILON = 1e-6
"""What the norms of latents have in every class, whatever the other norms have."""

EITHER = frozenset({BIAS, UNBIASED})
LISTED = frozenset({WINDOW, NO_WINDOW})
SCORED = frozenset({EXPERTS, SIGMOIDS, EXPERTS_BIAS, EXPERTS_FACTOR, SHARED, FIRST_DENSE})
QWEN_EXPERTS = frozenset({EXPERTS, UNNORMALIZED, FIRST_DENSE, SOME_DENSE})


@dataclass(frozen=True)
class Family:
    """A class of transformers: what its layers can be."""

    class_name: str
    takes: frozenset[str]
    """The parts that its layers can have."""
    needs: frozenset[str] = frozenset()
    """The parts, among `takes`, that none of its models is without."""
    of_experts: frozenset[str] = frozenset()
    """The parts, among `takes`, that none of its models with experts is without."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of its configuration that our models need to be so."""
    but: Mapping[str, str] = field(default_factory=dict)
    """Why a part that the class has is not ours."""
    recurrent: str | None = None
    """The kind of attention of its recurrent layers, if it has some."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Parts of its tensors' names, by what most classes have there."""

    def lacking(self, parts: Mapping[str, str]) -> set[str]:
        """Return the parts of a model that the class lacks, and those that only the class has."""
        needs = self.needs | self.of_experts if EXPERTS in parts else self.needs
        return (parts.keys() - self.takes) | (needs - parts.keys())

    def reason(self, parts: Mapping[str, str]) -> str:
        """Return why the class does not hold a model of these parts."""
        lacking = sorted(self.lacking(parts))
        foreign = [self.but.get(part, f"has no {part}") for part in lacking if part in parts]
        needed = [f"always has {part}" for part in lacking if part not in parts]
        return f"{self.class_name} {' and '.join([*foreign, *needed])}"

    def renamed(self, name: str) -> str:
        """Return the class's name of a tensor that most classes call `name`."""
        for usual, own in self.names.items():
            name = name.replace(usual, own)
        return name


FAMILIES: dict[Architecture, Family] = {
    "qwen2": Family("Qwen2ForCausalLM", LISTED | {BIAS}),
    "llama": Family("LlamaForCausalLM", EITHER, settings={"mlp_bias": False}),
    "mistral": Family("MistralForCausalLM", frozenset({UNBIASED, WINDOW}), frozenset({WINDOW})),
    "qwen3": Family("Qwen3ForCausalLM", EITHER | LISTED | {QK_NORM}, frozenset({QK_NORM})),
    "smollm3": Family("SmolLM3ForCausalLM", EITHER | LISTED | {NOPE}),
    "nanochat": Family(
        "NanoChatForCausalLM", EITHER | {QK_NORM, NANOCHAT}, frozenset({NANOCHAT}), settings={"hidden_act": "relu2"}
    ),
    "mixtral": Family("MixtralForCausalLM", frozenset({UNBIASED, EXPERTS}), frozenset({EXPERTS})),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        frozenset({BIAS}) | QWEN_EXPERTS,
        frozenset({EXPERTS}),
        # The class always has a shared expert; one of width 0 adds nothing.
        settings={"shared_expert_intermediate_size": 0},
    ),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", EITHER | {QK_NORM} | QWEN_EXPERTS, frozenset({QK_NORM, EXPERTS})),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        frozenset({LATENT, LATENT_ROPE}),
        frozenset({LATENT}),
        but={EXPERTS: "does not scale the weights of a token's experts to a sum of 1"},
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        SCORED | {LATENT, LATENT_ROPE},
        frozenset({LATENT, EXPERTS, SIGMOIDS}),
        # One group of experts; and no modules that predict further tokens.
        settings={"n_group": 1, "topk_group": 1, "num_mtp_layers": 0},
    ),
    "granite_swa": Family(
        "GraniteSWAForCausalLM",
        EITHER | LISTED | {NOPE, BASES, SINKS},
        frozenset({SINKS}),
        settings={"residual_multiplier": 1.0, "logits_scaling": 1.0},
    ),
    "qwen3_5_text": Family(
        "Qwen3_5ForCausalLM",
        EITHER | {QK_NORM, GATES, ROPE_SHARE, DELTA, CENTRED},
        frozenset({QK_NORM, GATES, CENTRED}),
        recurrent="gdn",
    ),
    "bamba": Family(
        "BambaForCausalLM",
        EITHER | {ROPE_SHARE, MAMBA},
        frozenset({MAMBA}),
        recurrent="mamba2",
        names={
            "model.norm.": "model.final_layernorm.",
            ".post_attention_layernorm.": ".pre_ff_layernorm.",
            ".mlp.": ".feed_forward.",
        },
    ),
    "kimi_linear": Family(
        "KimiLinearForCausalLM",
        SCORED | {LATENT, NOPE, KDA, SOME_DENSE},
        frozenset({LATENT, KDA}),
        of_experts=frozenset({SIGMOIDS}),
        recurrent="kda",
        # As transformers writes them, dense layers too.
        names={".mlp.": ".block_sparse_moe."},
    ),
}
"""The families by model type, in the order in which they are chosen."""

CLASSES: dict[Architecture, str] = {name: family.class_name for name, family in FAMILIES.items()}

MULTIPLIES = ("granite_swa",)
"""Model types with `model.embedding_multiplier` as a key; elsewhere the input's table holds the products."""
UNTIED = ("kimi_linear",)
"""Model types whose output never has the input's table, whatever the configuration says."""
SLIDING, SPARSE = "sliding_attention", "sparse"
"""transformers' names of a layer with a window, and of one with experts."""
EXPERTS_KEYS: Mapping[str, str] = {"deepseek_v3": "n_routed_experts", "kimi_linear": "num_local_experts"}
"""The key of the number of experts, by model type, where sigmoids score them."""
SHARE_KEY = "partial_rotary_factor"
"""transformers' name of the share of a head's dimensions that RoPE rotates."""
SCALING = {
    **{name: name for name in ("factor", "low_freq_factor", "high_freq_factor")},
    "original_seq_len": "original_max_position_embeddings",
}
"""transformers' names of the keys of RoPE's scaling, by ours."""


def has_products(model: ModelConfig, architecture: Architecture) -> bool:
    """Return whether the table of the embedding holds products with `model.embedding_multiplier`."""
    return model.embedding_multiplier != 1 and architecture not in MULTIPLIES


def is_untied(model: ModelConfig, architecture: Architecture) -> bool:
    """Return whether the class gets two tables also where training tied them."""
    return architecture in UNTIED or has_products(model, architecture)


def layer_views(model: ModelConfig) -> list[ModelConfig]:
    """Return the view of each layer."""
    views = model.views
    return [views[name] for name in model.layer_kinds]


def attends(view: ModelConfig) -> bool:
    """Return whether a layer has queries and keys that may have positions; a recurrent layer's have none."""
    return view.attention_variant.places != {"nothing"}


def rotation(model: ModelConfig) -> dict[str, Any] | None:
    """Return transformers' `rope_parameters` of the first layer with RoPE; None if there is none."""
    rotated = [view.position for view in model.views.values() if view.position.rope_base is not None]
    if not rotated:
        return None
    scaling = rotated[0].rope_scaling
    kind = {"rope_type": "default" if scaling is None else "llama3"}
    scaled = {} if scaling is None else {SCALING[key]: value for key, value in scaling.model_dump().items()}
    return {"rope_theta": rotated[0].rope_base, **kind, **scaled}


def layer_settings(model: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the keys of transformers' configuration that say what the layers are."""
    family, views = FAMILIES[architecture], layer_views(model)
    settings = dict(family.settings)
    if family.recurrent is not None:
        settings |= recurrent_settings(views, family.recurrent)
    attention = next((view.attention for view in views if attends(view)), None)
    if isinstance(attention, MLAConfig):
        routed = model.expert_layers
        dense: dict[str, Any] = {"first_k_dense_replace": model.layers - len(routed)}
        if SOME_DENSE in family.takes:
            dense = {"mlp_layer_types": [SPARSE if number in routed else "dense" for number in range(model.layers)]}
        return settings | attention.model_dump(exclude={"kind"}) | dense
    settings["head_dim"] = model.head_dim
    if isinstance(attention, GQAConfig) and family.takes >= EITHER:
        settings["attention_bias"] = attention.qkv_bias
    if architecture in ("mistral", "mixtral"):
        settings["sliding_window"] = None
    if SINKS in family.takes:
        # By default only every fourth layer is full.
        bases = [view.position.rope_base or 0 for view in views]
        settings |= {"layer_rope_theta": bases, "layer_types": [FULL] * model.layers}
        settings |= {"attention_multiplier": model.head_dim**-0.5, "embedding_multiplier": model.embedding_multiplier}
    elif NOPE in family.takes:
        settings["no_rope_layers"] = [int(view.position.rope_base is not None) for view in views]
    if NANOCHAT in family.takes:
        settings["final_logit_softcapping"] = model.logit_softcap
    windows = [window_of(view) for view in views]
    if any(windows):
        settings["sliding_window"] = max(width or 0 for width in windows)
    if any(windows) and NO_WINDOW in family.takes:
        types = [SLIDING if width else FULL for width in windows]
        settings |= {"layer_types": types} | ({} if SINKS in family.takes else {"use_sliding_window": True})
    return settings


def rope_share(view: ModelConfig, architecture: Architecture) -> dict[str, float]:
    """Return the share of a head's dimensions that RoPE rotates, for a class whose default is another than all."""
    if ROPE_SHARE not in FAMILIES[architecture].takes:
        return {}
    share = view.position.share if isinstance(view.position, RopeConfig) else None
    return {SHARE_KEY: share or 1.0}


def expert_settings(model: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the keys of transformers' configuration that say what the experts are; none for a model without."""
    moe, routed = model.moe, model.expert_layers
    if moe is None:
        return {}
    settings = {"num_experts_per_tok": moe.top_k, "router_aux_loss_coef": moe.auxiliary_loss}
    if architecture == "mixtral":
        return settings | {"num_local_experts": moe.experts}
    settings["moe_intermediate_size"] = layer_views(model)[routed[0]].ffn_hidden_size
    if architecture in EXPERTS_KEYS:
        return {
            **{key: value for key, value in settings.items() if key != "router_aux_loss_coef"},
            **{EXPERTS_KEYS[architecture]: moe.experts, "n_shared_experts": moe.shared_experts or 0},
            # The weight of a single expert is its score.
            **{"routed_scaling_factor": moe.scale, "norm_topk_prob": moe.top_k > 1},
        }
    dense = [number for number in range(model.layers) if number not in routed]
    return settings | {"num_experts": moe.experts, "norm_topk_prob": moe.normalized, "mlp_only_layers": dense}


def window_of(view: ModelConfig) -> int | None:
    """Return the width of a layer's window; None for full attention."""
    return view.attention.window if isinstance(view.attention, GQAConfig) else None
