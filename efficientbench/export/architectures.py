"""Choose the class of transformers that computes exactly what our model does, and build its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from efficientbench.architecture.model import OWN_LAYER, ModelConfig
from efficientbench.architecture.registry import ATTENTION
from efficientbench.architecture.variant import imported
from efficientbench.basics.errors import ConfigError
from efficientbench.config.schema import RunConfig
from efficientbench.export.families import (
    CENTRED,
    CLASSES,
    EXPERTS,
    EXPERTS_BIAS,
    EXPERTS_FACTOR,
    FAMILIES,
    FIRST_DENSE,
    NANOCHAT,
    NO_WINDOW,
    NOPE,
    QK_NORM,
    SHARED,
    SIGMOIDS,
    SOME_DENSE,
    UNNORMALIZED,
    Architecture,
    attends,
    expert_settings,
    is_untied,
    layer_settings,
    rope_share,
    rotation,
    window_of,
)

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Exporter:
    """The counterpart of an attention variant in transformers; each function takes the view of a layer."""

    parts: Callable[[ModelConfig], dict[str, str]]
    """The parts that not every class has (export/families.py), each with our key, as `attention.window=9`."""
    norms: Callable[[ModelConfig], dict[str, int]]
    """The width of each norm's weight within the attention, by our name in a layer."""
    weights: Callable[[ModelConfig], dict[str, tuple[int, ...]]]
    """The shape of each other weight of the attention, by our name in a layer."""
    converted: Callable[[str, torch.Tensor, ModelConfig, Architecture], dict[str, torch.Tensor]]
    """A weight's tensors in transformers, from (our name in a layer, weight, view, model type); empty if foreign."""


def exporter_of(view: ModelConfig, inside: str = "") -> Exporter:
    """Return the exporter of a layer's attention; `inside`: where its keys are, after `model.`.

    Raises ConfigError: the attention's declaration names none.
    """
    variant = view.attention_variant
    if variant.exporter is None:
        raise refusal(f"model.{inside}attention.kind={view.attention.kind}", variant.not_exported)
    return imported(variant.exporter)


def architecture_of(model: ModelConfig, tokenizer_survives_qwen2: bool = True) -> Architecture:
    """Return the model type of transformers that computes exactly what `model` does.

    Beside a Qwen2 configuration, some tokenizers change (see `hugging_face.survives_qwen2`). The model is then exported
    as the same model in another class, with a bias of zeros on the output projection.

    Raises:
        ConfigError: no class computes this model; the message names what the nearest classes lack.
    """
    parts = _parts(model)
    families = {name: family for name, family in FAMILIES.items() if name != "qwen2" or tokenizer_survives_qwen2}
    for name, family in families.items():
        if not family.lacking(parts):
            return name
    nowhere = [part for part in parts if not any(part in family.takes for family in families.values())]
    if nowhere:
        keys = ", ".join(f"model.{parts[part]}" for part in nowhere)
        raise refusal(keys, f"no class of transformers has {' and '.join(nowhere)}")
    fewest = min(len(family.lacking(parts)) for family in families.values())
    # Also those that have all of it, and more.
    nearest = [each for each in families.values() if len(each.lacking(parts)) == fewest or parts.keys() <= each.takes]
    lacking = {part for family in nearest for part in family.lacking(parts)}
    # Where all that is missing is missing in the model, its parts are why these classes are the nearest.
    named = [key for part, key in parts.items() if part in lacking] or parts.values()
    keys = ", ".join(f"model.{key}" for key in named)
    raise refusal(keys, "; ".join(family.reason(parts) for family in nearest))


def _parts(model: ModelConfig) -> dict[str, str]:
    """Return the parts of all layers that not every class has, each with our key after `model.`.

    Raises:
        ConfigError: no class has the attention, the positional encoding, or a part of nanochat without the others.
    """
    parts: dict[str, str] = {}
    for name, view in model.views.items():
        inside = "" if name == OWN_LAYER else f"kinds.{name}."
        position = view.position_variant
        found = exporter_of(view, inside).parts(view)
        rotated = position.place == "queries and keys" and view.position.rope_base is not None
        if position.place != "nothing" and not rotated:
            raise refusal(f"model.{inside}position.kind={view.position.kind}", position.not_exported)
        if position.place == "nothing" and attends(view):
            found[NOPE] = f"position.kind={view.position.kind}"
        # A key without a name here is in no class.
        further = view.position.model_dump(exclude={"kind", "base", "scaling"})
        found |= {f"RoPE's {key}": f"position.{key}={value}" for key, value in further.items() if value}
        if view.qk_norm:
            found[QK_NORM] = "qk_norm=true"
        parts = {part: f"{inside}{key}" for part, key in found.items()} | parts
    if not any(map(attends, model.views.values())):
        # transformers' cache takes no model without keys.
        parts["recurrent layers alone"] = f"attention.kind={view.attention.kind}"
    if model.norm_weights == "zero_centred":
        parts[CENTRED] = "norm_weights=zero_centred"
    return parts | _of_experts(model) | _of_nanochat(model) | _differing(list(model.views.values()))


def _of_experts(model: ModelConfig) -> dict[str, str]:
    """Return the parts of experts, each with our key after `model.`."""
    moe = model.moe
    if moe is None:
        return {}
    parts = {EXPERTS: f"moe.experts={moe.experts}"}
    dense = [number for number in range(model.layers) if number not in model.expert_layers]
    further = {
        SIGMOIDS: ("moe.scores=sigmoid", moe.scores == "sigmoid"),
        UNNORMALIZED: ("moe.normalized=false", not moe.normalized),
        EXPERTS_BIAS: (f"moe.bias_rate={moe.bias_rate}", moe.bias_rate is not None),
        EXPERTS_FACTOR: (f"moe.scale={moe.scale}", moe.scale != 1),
        SHARED: (f"moe.shared_experts={moe.shared_experts}", moe.shared_experts),
        FIRST_DENSE: ("kinds.*.moe=false", dense and dense[-1] == len(dense) - 1),
        SOME_DENSE: ("kinds.*.moe=false", dense and dense[-1] != len(dense) - 1),
    }
    return parts | {part: key for part, (key, there) in further.items() if there}


def _differing(views: list[ModelConfig]) -> dict[str, str]:
    """Return the parts that only layers of several kinds have, each with our key after `model.`."""
    rotated = [view for view in views if view.position.rope_base is not None]
    windows = {window_of(view) for view in views}
    # Layers without experts have another width.
    widths = [{view.ffn_hidden_size for view in views if (view.moe is None) == dense} for dense in (True, False)]
    compared: list[tuple[str, list[Any]]] = [
        ("attention.window", [*windows - {None}]),
        ("position.base", [view.position.rope_base for view in rotated]),
        ("position.scaling", [view.position.rope_scaling for view in rotated]),
        ("position.share", [view.rotated_dim for view in rotated]),
        ("qk_norm", [view.qk_norm for view in views if attends(view)]),
        ("ffn_hidden_size", [1, *map(len, filter(None, widths))]),
    ]
    # A class may have recurrent layers beside others.
    for attending in (True, False):
        alike = [view.attention.model_dump(exclude={"window"}) for view in views if attends(view) == attending]
        if len({each["kind"] for each in alike}) > 1:
            return {"layers that differ in attention.kind": "pattern"}
        compared += [(f"attention.{key}", [each.get(key) for each in alike]) for each in alike for key in each]
    differing = [key for key, values in compared if any(value != values[0] for value in values)]
    parts = {f"layers that differ in {key}": f"kinds.*.{key}" for key in differing}
    return parts | ({NO_WINDOW: "pattern"} if None in windows and len(windows) > 1 else {})


def _of_nanochat(model: ModelConfig) -> dict[str, str]:
    """Return the part for nanochat's backbone; refuse the parts that only NanoChat has in a model that is not its."""
    views = model.views.values()
    plain = model.moe is None and all(view.position.rope_base is not None for view in views)
    normed = all(view.qk_norm for view in views) and model.embedding_norm and not model.norm_weights
    if plain and normed and model.activation == "relu2":
        return {NANOCHAT: "activation=relu2"}
    keys = {
        "activation=relu2": model.activation == "relu2",
        "embedding_norm=true": model.embedding_norm,
        f"logit_softcap={model.logit_softcap}": model.logit_softcap is not None,
    }
    found = [f"model.{key}" for key, there in keys.items() if there]
    if found:
        raise refusal(
            ", ".join(found),
            "of transformers' classes NanoChat has this, and it has GQA, rope, activation=relu2, embedding_norm=true, "
            "qk_norm=true and norm_weights=false together, and no experts",
        )
    return {}


def refusal(keys: str, reason: str) -> ConfigError:
    """Return the error for a model without an exact counterpart, which lists the models that have one."""
    exportable = "; ".join(
        [*(each.exportable for each in ATTENTION.values() if each.exportable), "nanochat's backbone"]
    )
    return ConfigError(f"{keys}: this model has no exact counterpart: {reason}; what can be exported: {exportable}")


def transformers_config(config: RunConfig, architecture: Architecture, eos_token_id: int) -> PretrainedConfig:
    """Return the run's configuration as transformers' configuration of the architecture.

    Raises:
        ConfigError: the installed transformers does not know the architecture, or refuses the shapes.
    """
    import transformers

    try:
        found = transformers.AutoConfig.for_model(architecture, **_settings(config, architecture, eos_token_id))
    except Exception as error:  # the class that an unknown type or a refused value raises differs between releases
        reason = str(error).strip() or type(error).__name__
        raise ConfigError(
            f"transformers {transformers.__version__} has no {CLASSES[architecture]} of these shapes: "
            f"{reason.splitlines()[-1].strip()}"
        ) from None
    found.architectures = [CLASSES[architecture]]
    return found


def _settings(config: RunConfig, architecture: Architecture, eos_token_id: int) -> dict[str, Any]:
    model = config.model
    # All layers are alike in what the class has once, and those without experts in the width of a dense layer.
    layer = min(model.views.values(), key=lambda view: not attends(view))
    dense = min(model.views.values(), key=lambda view: view.moe is not None)
    settings: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": dense.ffn_hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": layer.key_value_heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.training.seq_len,
        "initializer_range": model.init_std,
        "rms_norm_eps": model.norm_epsilon,
        # If training tied the tables, the input's may be a multiple of the output's: see `tensors`.
        "tie_word_embeddings": model.tied and not is_untied(model, architecture),
        "attention_dropout": 0.0,
        "dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[config.training.dtype],
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
    }
    rope_parameters = rotation(model)
    if rope_parameters is not None:
        settings["rope_parameters"] = rope_parameters | rope_share(layer, architecture)
    return settings | layer_settings(model, architecture) | expert_settings(model, architecture)
