"""The classes of transformers: which layers each takes, and the keys of its configuration that say what layers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Literal

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.model import OWN_LAYER, ModelConfig

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
    "granite_swa",
]

# The parts that some classes have and others lack, as messages name them.
BIAS = "a bias on Q, K and V"
UNBIASED = "Q, K and V without a bias"
LATENT = "latent attention"
QK_NORM = "norms on queries and keys"
EXPERTS = "experts"
NOPE = "layers without RoPE"
WINDOW = "windows"
NO_WINDOW = "windows in some layers alone"
BASES = "layers that differ in position.base"
SINKS = "sinks"
NANOCHAT = "parts of nanochat"

EITHER = frozenset({BIAS, UNBIASED})
LISTED = frozenset({WINDOW, NO_WINDOW})


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
        frozenset({BIAS, EXPERTS}),
        frozenset({EXPERTS}),
        # The class always has a shared expert; one of width 0 adds nothing.
        settings={"shared_expert_intermediate_size": 0},
    ),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", EITHER | {QK_NORM, EXPERTS}, frozenset({QK_NORM, EXPERTS})),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        frozenset({LATENT}),
        frozenset({LATENT}),
        but={
            EXPERTS: "does not scale the weights of a token's experts to a sum of 1 (and DeepseekV3 scores experts by "
            "sigmoids where this model takes a softmax)"
        },
    ),
    "granite_swa": Family(
        "GraniteSWAForCausalLM",
        EITHER | LISTED | {NOPE, BASES, SINKS},
        frozenset({SINKS}),
        settings={"residual_multiplier": 1.0, "logits_scaling": 1.0},
    ),
}
"""The families by model type, in the order in which they are chosen."""

CLASSES: dict[Architecture, str] = {name: family.class_name for name, family in FAMILIES.items()}

MULTIPLIES = ("granite_swa",)
"""Model types with `model.embedding_multiplier` as a key; elsewhere the input's table holds the products."""
SLIDING = "sliding_attention"
"""transformers' name of a layer with a window."""
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
    if not isinstance(views[0].attention, GQAConfig):
        return settings | views[0].attention.model_dump(exclude={"kind"}) | {"first_k_dense_replace": model.layers}
    settings["head_dim"] = model.head_dim
    if family.takes >= EITHER:
        settings["attention_bias"] = views[0].attention.qkv_bias
    if architecture in ("mistral", "mixtral"):
        settings["sliding_window"] = None
    if SINKS in family.takes:
        # By default only every fourth layer is full.
        bases = [view.position.rope_base or 0 for view in views]
        settings |= {"layer_rope_theta": bases, "layer_types": ["full_attention"] * model.layers}
        settings |= {"attention_multiplier": model.head_dim**-0.5, "embedding_multiplier": model.embedding_multiplier}
    elif NOPE in family.takes:
        settings["no_rope_layers"] = [int(view.position.rope_base is not None) for view in views]
    if NANOCHAT in family.takes:
        settings["final_logit_softcapping"] = model.logit_softcap
    windows = [window_of(view) for view in views]
    if any(windows):
        settings["sliding_window"] = max(width or 0 for width in windows)
    if any(windows) and NO_WINDOW in family.takes:
        types = [SLIDING if width else "full_attention" for width in windows]
        settings |= {"layer_types": types} | ({} if SINKS in family.takes else {"use_sliding_window": True})
    return settings


def window_of(view: ModelConfig) -> int | None:
    """Return the width of a layer's window; None for full attention."""
    return view.attention.window if isinstance(view.attention, GQAConfig) else None


def layer_keys(found: PretrainedConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the keys of our `model` that say what the layers are, from transformers' configuration."""
    family, rope = FAMILIES[architecture], _rope(found.rope_parameters)
    if LATENT in family.takes:
        attention = {"kind": "mla", **{key: getattr(found, key) for key in MLAConfig.model_fields if key != "kind"}}
        # Our head_dim is the default of qk_nope_head_dim.
        return {"attention": attention, "position": rope, "head_dim": found.qk_nope_head_dim}
    bias = found.attention_bias if family.takes >= EITHER else BIAS in family.takes
    attention = {"kind": "gqa", "query_groups": found.num_key_value_heads, "qkv_bias": bias}
    if SINKS in family.takes:
        attention["sinks"] = True
        rope["base"] = next((base for base in found.layer_rope_theta if base), rope["base"])
    own = {"attention": attention, "position": rope, "head_dim": found.head_dim}
    layers = [_layer(found, family, number) for number in range(found.num_hidden_layers)]
    kinds = dict(layers)
    if len(kinds) < 2:
        [alike] = kinds.values() or [{}]
        return own | {"attention": attention | alike.get("attention", {}), "position": alike.get("position", rope)}
    names = [name for name, _ in layers]
    periods = (names[:length] for length in range(1, len(names) + 1))
    pattern = next(period for period in periods if [*islice(cycle(period), len(names))] == names)
    return own | {"pattern": pattern, "kinds": {name: kind for name, kind in kinds.items() if name != OWN_LAYER}}


def _layer(found: PretrainedConfig, family: Family, number: int) -> tuple[str, dict[str, Any]]:
    """Return the name of a layer's kind and its keys, where they differ from a layer with RoPE and no window."""
    kind: dict[str, dict[str, Any]] = {}
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
