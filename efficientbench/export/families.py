"""The classes of transformers: which layers each takes, and the keys of its configuration that say what layers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Literal

from efficientbench.architecture.gdn import GDNConfig
from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.model import OWN_LAYER, ModelConfig
from efficientbench.architecture.positions import RopeConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
]

# The parts that some classes have and others lack, as messages name them.
BIAS = "a bias on Q, K and V"
UNBIASED = "Q, K and V without a bias"
LATENT = "latent attention"
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
CENTRED = "zero-centred norms"
NANOCHAT = "parts of nanochat"

EITHER = frozenset({BIAS, UNBIASED})
LISTED = frozenset({WINDOW, NO_WINDOW})
QWEN_EXPERTS = frozenset({EXPERTS, UNNORMALIZED, FIRST_DENSE, SOME_DENSE})


@dataclass(frozen=True)
class Family:
    """A class of transformers: what its layers can be."""

    class_name: str
    takes: frozenset[str]
    """The parts that its layers can have."""
    needs: frozenset[str] = frozenset()
    """The parts, among `takes`, that none of its models is without."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of its configuration that our models need to be so."""
    but: Mapping[str, str] = field(default_factory=dict)
    """Why a part that the class has is not ours."""

    def lacking(self, parts: Mapping[str, str]) -> set[str]:
        """Return the parts of a model that the class lacks, and those that only the class has."""
        return (parts.keys() - self.takes) | (self.needs - parts.keys())

    def reason(self, parts: Mapping[str, str]) -> str:
        """Return why the class does not hold a model of these parts."""
        lacking = sorted(self.lacking(parts))
        foreign = [self.but.get(part, f"has no {part}") for part in lacking if part in parts]
        needed = [f"always has {part}" for part in lacking if part not in parts]
        return f"{self.class_name} {' and '.join([*foreign, *needed])}"


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
        frozenset({LATENT}),
        frozenset({LATENT}),
        but={EXPERTS: "does not scale the weights of a token's experts to a sum of 1"},
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        frozenset({LATENT, EXPERTS, SIGMOIDS, EXPERTS_BIAS, EXPERTS_FACTOR, SHARED, FIRST_DENSE}),
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
    ),
}
"""The families by model type, in the order in which they are chosen."""

CLASSES: dict[Architecture, str] = {name: family.class_name for name, family in FAMILIES.items()}

MULTIPLIES = ("granite_swa",)
"""Model types with `model.embedding_multiplier` as a key; elsewhere the input's table holds the products."""
SLIDING, LINEAR, FULL = "sliding_attention", "linear_attention", "full_attention"
"""transformers' names of a layer with a window, of a recurrent one, and of one that sees all tokens."""
LINEAR_KEYS = {
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key_dim": "linear_key_head_dim",
    "value_dim": "linear_value_head_dim",
    "convolution": "linear_conv_kernel_dim",
}
"""transformers' names of the keys of Gated DeltaNet, by ours."""
SCALING = {
    **{name: name for name in ("factor", "low_freq_factor", "high_freq_factor")},
    "original_seq_len": "original_max_position_embeddings",
}
"""transformers' names of the keys of RoPE's scaling, by ours."""


def has_products(model: ModelConfig, architecture: Architecture) -> bool:
    """Return whether the table of the embedding holds products with `model.embedding_multiplier`."""
    return model.embedding_multiplier != 1 and architecture not in MULTIPLIES


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
    settings, full = dict(family.settings), next(filter(attends, views))
    if not isinstance(full.attention, GQAConfig):
        dense = model.layers - len(model.expert_layers)
        return settings | full.attention.model_dump(exclude={"kind"}) | {"first_k_dense_replace": dense}
    settings["head_dim"] = model.head_dim
    if family.takes >= EITHER:
        settings["attention_bias"] = full.attention.qkv_bias
    if DELTA in family.takes:
        settings |= _recurrent_settings(views) | {"partial_rotary_factor": _share(full)}
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


def _recurrent_settings(views: Sequence[ModelConfig]) -> dict[str, Any]:
    """Return the keys that say which layers are recurrent, and what these are."""
    settings: dict[str, Any] = {"layer_types": [FULL if attends(view) else LINEAR for view in views]}
    for view in views:
        if isinstance(view.attention, GDNConfig):
            keys = view.attention.model_dump() | {"value_heads": view.attention.heads}
            settings |= {name: keys[key] for key, name in LINEAR_KEYS.items()}
    return settings


def _share(view: ModelConfig) -> float:
    """Return the share of a head's dimensions that RoPE rotates."""
    return view.position.share or 1.0 if isinstance(view.position, RopeConfig) else 1.0


def expert_settings(model: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the keys of transformers' configuration that say what the experts are; none for a model without."""
    moe, routed = model.moe, model.expert_layers
    if moe is None:
        return {}
    settings = {"num_experts_per_tok": moe.top_k, "router_aux_loss_coef": moe.auxiliary_loss}
    if architecture == "mixtral":
        return settings | {"num_local_experts": moe.experts}
    settings["moe_intermediate_size"] = layer_views(model)[routed[0]].ffn_hidden_size
    if architecture == "deepseek_v3":
        return {
            **{key: value for key, value in settings.items() if key != "router_aux_loss_coef"},
            **{"n_routed_experts": moe.experts, "n_shared_experts": moe.shared_experts or 0},
            # The weight of a single expert is its score.
            **{"routed_scaling_factor": moe.scale, "norm_topk_prob": moe.top_k > 1},
        }
    dense = [number for number in range(model.layers) if number not in routed]
    return settings | {"num_experts": moe.experts, "norm_topk_prob": moe.normalized, "mlp_only_layers": dense}


def expert_keys(found: PretrainedConfig, architecture: Architecture) -> dict[str, Any] | None:
    """Return the section `model.moe` from transformers' configuration; None for a class without experts."""
    if architecture == "deepseek_v3":
        return {
            **{"experts": found.n_routed_experts, "top_k": found.num_experts_per_tok, "auxiliary_loss": 0.0},
            **{"scores": "sigmoid", "scale": found.routed_scaling_factor},
            # Training may go on with another rate.
            **{"bias_rate": 0.0, "shared_experts": found.n_shared_experts or None},
        }
    if EXPERTS not in FAMILIES[architecture].takes:
        return None
    return {
        **{"experts": found.num_experts, "top_k": found.num_experts_per_tok},
        **{"auxiliary_loss": found.router_aux_loss_coef, "normalized": getattr(found, "norm_topk_prob", True)},
    }


def window_of(view: ModelConfig) -> int | None:
    """Return the width of a layer's window; None for full attention."""
    return view.attention.window if isinstance(view.attention, GQAConfig) else None


def layer_keys(found: PretrainedConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the keys of our `model` that say what the layers are, from transformers' configuration."""
    family, rope = FAMILIES[architecture], _rope(found.rope_parameters)
    if LATENT in family.takes:
        attention = {"kind": "mla", **{key: getattr(found, key) for key in MLAConfig.model_fields if key != "kind"}}
        # Our head_dim is the default of qk_nope_head_dim.
        own = {"attention": attention, "position": rope, "head_dim": found.qk_nope_head_dim}
        # A model of this class without experts is refused when keys are compared.
        return own | _pattern(found, family)[1]
    bias = found.attention_bias if family.takes >= EITHER else BIAS in family.takes
    attention = {"kind": "gqa", "query_groups": found.num_key_value_heads, "qkv_bias": bias}
    if GATES in family.takes:
        attention["gate"] = True
    if ROPE_SHARE in family.takes:
        rope["share"] = found.rope_parameters.get("partial_rotary_factor")
    if SINKS in family.takes:
        attention["sinks"] = True
        rope["base"] = next((base for base in found.layer_rope_theta if base), rope["base"])
    own = {"attention": attention, "position": rope, "head_dim": found.head_dim}
    alike, differing = _pattern(found, family)
    own |= {"attention": attention | alike.get("attention", {}), "position": alike.get("position", rope)}
    return own | differing


def _pattern(found: PretrainedConfig, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of layers that are alike, or `first`, `pattern` and `kinds` of our model."""
    layers = [_layer(found, family, number) for number in range(found.num_hidden_layers)]
    kinds = dict(layers)
    if len(kinds) < 2:
        [alike] = kinds.values() or [{}]
        return alike, {}
    names = [name for name, _ in layers]
    # The shortest way to write it: so many first layers, and a period after them.
    lengths = [(first, period) for first in range(len(names)) for period in range(1, len(names) - first + 1)]
    first, period = next(
        (first, period)
        for first, period in sorted(lengths, key=sum)
        if [*islice(cycle(names[first : first + period]), len(names) - first)] == names[first:]
    )
    leading = {"first": names[:first]} if first else {}
    listed = {name: kind for name, kind in kinds.items() if name != OWN_LAYER}
    return {}, leading | {"pattern": names[first : first + period], "kinds": listed}


def _layer(found: PretrainedConfig, family: Family, number: int) -> tuple[str, dict[str, Any]]:
    """Return the name of a layer's kind and its keys, where they differ from a layer with RoPE and no window."""
    kind: dict[str, dict[str, Any]] = {}
    dense: Sequence[int] = getattr(found, "mlp_only_layers", ())
    if SIGMOIDS in family.takes:
        dense = range(found.first_k_dense_replace or 0)
    if FIRST_DENSE in family.takes and number in dense:
        kind["dense"] = {"moe": False, "ffn_hidden_size": found.intermediate_size}
    if DELTA in family.takes and found.layer_types[number] == LINEAR:
        attention = {"kind": "gdn", **{key: getattr(found, name) for key, name in LINEAR_KEYS.items()}}
        kind["gdn"] = {"attention": attention, "position": {"kind": "none"}, "qk_norm": False}
    # Mistral's windows are in every layer.
    slides = NO_WINDOW not in family.takes or found.layer_types[number] == SLIDING
    if WINDOW in family.takes and slides and found.sliding_window:
        kind["window"] = {"attention": {"window": found.sliding_window}}
    # Lists that are too short are refused when they are compared.
    if SINKS in family.takes:
        bases = [base for base in dict.fromkeys(found.layer_rope_theta) if base]
        base = next(iter(found.layer_rope_theta[number:]), None)
        if base == 0:
            kind["nope"] = {"position": {"kind": "none"}}
        elif base in bases[1:]:
            kind[f"rope{bases.index(base) + 1}"] = {"position": {"base": base}}
    elif NOPE in family.takes and found.no_rope_layers[number : number + 1] == [0]:
        kind["nope"] = {"position": {"kind": "none"}}
    return "_".join(kind) or OWN_LAYER, {section: keys for each in kind.values() for section, keys in each.items()}


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of our RoPE from transformers' `rope_parameters`; a scaling of another type has none."""
    scaled = parameters.get("rope_type") == "llama3"
    scaling = {key: parameters.get(name) for key, name in SCALING.items()} if scaled else None
    return {"kind": "rope", "base": parameters.get("rope_theta"), "scaling": scaling}
