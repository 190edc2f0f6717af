"""The keys of our layers from the configurations of transformers' classes: the inverse of `families`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from efficientbench.architecture.mla import MLAConfig
from efficientbench.architecture.model import OWN_LAYER
from efficientbench.export.families import (
    BIAS,
    EITHER,
    EXPERTS,
    EXPERTS_KEYS,
    FAMILIES,
    FIRST_DENSE,
    GATES,
    LATENT,
    LATENT_ROPE,
    NO_WINDOW,
    ROPE_SHARE,
    SCALING,
    SHARE_KEY,
    SIGMOIDS,
    SINKS,
    SLIDING,
    SOME_DENSE,
    SPARSE,
    WINDOW,
    Architecture,
    Family,
)
from efficientbench.export.recurrent import LINEAR, recurrent_keys

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def expert_keys(found: PretrainedConfig, architecture: Architecture) -> dict[str, Any] | None:
    """Return the section `model.moe` from transformers' configuration; None for a class without experts."""
    if architecture in EXPERTS_KEYS:
        if SPARSE not in getattr(found, "mlp_layer_types", [SPARSE]):
            return None
        experts = getattr(found, EXPERTS_KEYS[architecture])
        return {
            **{"experts": experts, "top_k": found.num_experts_per_tok, "auxiliary_loss": 0.0},
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


def layer_keys(found: PretrainedConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the keys of our `model` that say what the layers are, from transformers' configuration."""
    family = FAMILIES[architecture]
    if LATENT in family.takes:
        position = _rope(found.rope_parameters) if LATENT_ROPE in family.takes else {"kind": "none"}
        attention = {"kind": "mla", **{key: getattr(found, key) for key in MLAConfig.model_fields if key != "kind"}}
        # Our head_dim is the default of qk_nope_head_dim.
        own = {"attention": attention, "position": position, "head_dim": found.qk_nope_head_dim}
        # A model of this class without experts is refused when keys are compared.
        return own | _pattern(found, family)[1]
    rope = _rope(found.rope_parameters)
    bias = found.attention_bias if family.takes >= EITHER else BIAS in family.takes
    attention = {"kind": "gqa", "query_groups": found.num_key_value_heads, "qkv_bias": bias}
    if GATES in family.takes:
        attention["gate"] = True
    if ROPE_SHARE in family.takes:
        rope["share"] = found.rope_parameters.get(SHARE_KEY)
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
    if FIRST_DENSE in family.takes and number in _dense_layers(found, family):
        kind["dense"] = {"moe": False, "ffn_hidden_size": found.intermediate_size}
    if family.recurrent is not None and found.layer_types[number] == LINEAR:
        attention = recurrent_keys(found, family.recurrent)
        kind[family.recurrent] = {"attention": attention, "position": {"kind": "none"}, "qk_norm": False}
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
    elif getattr(found, "no_rope_layers", [])[number : number + 1] == [0]:
        kind["nope"] = {"position": {"kind": "none"}}
    return "_".join(kind) or OWN_LAYER, {section: keys for each in kind.values() for section, keys in each.items()}


def _dense_layers(found: PretrainedConfig, family: Family) -> Sequence[int]:
    """Return the numbers of the layers without experts in a model that has some."""
    if SIGMOIDS not in family.takes:
        return getattr(found, "mlp_only_layers", ())
    if SOME_DENSE not in family.takes:
        return range(found.first_k_dense_replace or 0)
    types = found.mlp_layer_types
    return [number for number, each in enumerate(types) if each != SPARSE] if SPARSE in types else ()


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of our RoPE from transformers' `rope_parameters`; a scaling of another type has none."""
    scaled = parameters.get("rope_type") == "llama3"
    scaling = {key: parameters.get(name) for key, name in SCALING.items()} if scaled else None
    return {"kind": "rope", "base": parameters.get("rope_theta"), "scaling": scaling}
