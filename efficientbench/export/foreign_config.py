"""Read transformers' config.json as our configuration, and refuse, by key, what none of our models computes.

The installed class of transformers reads the file, with its defaults. Our model of these shapes is then exported again,
as a configuration: a key that differs would change what the model computes.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version
from pydantic import ValidationError

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.errors import ConfigError, nearest
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.config.schema import RunConfig
from efficientbench.export.architectures import transformers_config
from efficientbench.export.families import (
    CENTRED,
    CLASSES,
    FAMILIES,
    GATES,
    KDA,
    LATENT,
    LATENT_EPSILON,
    MAMBA,
    NO_WINDOW,
    Architecture,
    rotation,
    window_of,
)
from efficientbench.export.foreign_layers import expert_keys, layer_keys
from efficientbench.export.recurrent import FULL, LINEAR

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CODE_OR_CONVERSION = {
    "auto_map": "it names code of its own, which is not run here",
    "per_layer_config": "its layers differ in shapes, and here they differ in windows and RoPE alone",
}
"""Keys for which a folder is refused if they are set → the reason."""
OUTSIDE_THE_CLASS = (
    *("head_dim", "rope_theta", "rope_scaling", "partial_rotary_factor", "full_attention_interval"),
    *("linear_attn_config", "first_k_dense_replace"),
)
"""Keys that transformers reads from any configuration, besides the keys of its class."""
WITHOUT_EFFECT = {
    *("_name_or_path", "architectures", "dtype", "model_type", "problem_type", "transformers_version"),
    *("chunk_size_feed_forward", "id2label", "label2id", "is_encoder_decoder", "return_dict", "use_cache"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "pretraining_tp"),
    # Keys of training, and of text.
    *("attention_dropout", "initializer_range", "router_aux_loss_coef", "router_jitter_noise"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "model_max_length"),
    # layer_types holds what these keys decide.
    *("max_window_layers", "no_rope_layer_interval"),
}
"""Keys that change no logits."""
OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Keys of `rope_parameters` that place the parts of an image: all parts of a token of text have one place."""
FOREIGN_NAMES = {
    "auxiliary_loss": "router_aux_loss_coef",
    "base": "rope_theta",
    "experts": "num_experts",
    "ffn_hidden_size": "intermediate_size",
    "heads": "num_attention_heads",
    "init_std": "initializer_range",
    "layers": "num_hidden_layers",
    "norm_epsilon": "rms_norm_eps",
    "query_groups": "num_key_value_heads",
    "seq_len": "max_position_embeddings",
    "share": "partial_rotary_factor",
    "top_k": "num_experts_per_tok",
    "window": "sliding_window",
}
"""transformers' names of our keys, for messages."""
OF_EXPERTS = {
    *("moe_intermediate_size", "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob"),
    *("num_experts_per_tok", "routed_scaling_factor", "topk_group", "topk_method"),
    # Kimi Linear's names of some.
    *("moe_renormalize", "num_expert_group", "num_experts", "num_experts_per_token", "num_shared_experts"),
}
"""Keys that change no logits of a model that is dense in every layer."""
UNUSED: dict[str, set[str]] = {
    # The number of modules that predict further tokens, whose weights are refused by name.
    "deepseek_v3": {"num_mtp_layers", "num_nextn_predict_layers"},
    # A width that nothing has; tokens computed together, a part of the loss, and the logits that generation keeps.
    "kimi_linear": {"head_dim"},
    "bamba": {"mamba_chunk_size", "z_loss_coefficient", "num_logits_to_keep"},
}
"""Keys that change no logits of a model that is not refused for another key, by model type."""


def read_config(folder: Path, size: str) -> tuple[RunConfig, Architecture, Any]:
    """Return a folder's configuration as ours, its model type, and its key `quantization_config`, None without it.

    The run's name is `<model type>_<size>`. The caller sets the dtype from the weights, whose dtype may differ from
    config.json's.

    Args:
        folder: the folder with config.json.
        size: the size in the run's name.

    Raises:
        ConfigError: the file is missing, damaged, or describes a model that is not one of ours; the message names the
            key and what would be right.
    """
    path = folder / "config.json"
    content = _read(path)
    return *config_of(path, content, size), content.get("quantization_config")


def config_of(path: Path, content: dict[str, Any], size: str) -> tuple[RunConfig, Architecture]:
    """Return transformers' keys as `read_config` does; `path`: where they come from.

    Raises ConfigError: they describe a model that is not one of ours.
    """
    architecture = _architecture(path, content)
    found = _parsed(path, architecture, content)
    _check_layers(path, found, architecture)
    try:
        config = RunConfig.model_validate(
            {
                "variant": architecture,
                "size": size,
                "output": "output/imported",
                "model": _model(found, architecture),
                "training": {"seq_len": found.max_position_embeddings},
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][-1]) if first["loc"] else "its shapes"
        # Our dotted keys become the keys of the configuration that was read.
        reason = re.sub(
            r"\b(attention|position|moe)\.(\w+)",
            lambda dotted: FOREIGN_NAMES.get(dotted[2], dotted[2]),
            first["msg"].removeprefix("Value error, "),
        )
        raise ConfigError(f"{path}: {FOREIGN_NAMES.get(key, key)}: {reason}") from None
    expected = transformers_config(config, architecture, 0).to_dict()
    given = found.to_dict()
    without_effect = WITHOUT_EFFECT | UNUSED.get(architecture, set()) | _unused(config.model, architecture)
    if "layer_rope_theta" in expected:
        for parameters in (given["rope_parameters"], expected["rope_parameters"]):
            parameters.pop("rope_theta", None)  # Each layer has its own.
    for key in OF_IMAGES:
        (given.get("rope_parameters") or {}).pop(key, None)
    differing = [key for key in expected if key not in without_effect and not _same(given.get(key), expected[key])]
    if differing:
        lines = [f"{key} is {_short(given.get(key))}, {_short(expected[key])} would be right" for key in differing]
        raise ConfigError(f"{path}: no model here computes what this one does: {'; '.join(lines)}")
    return config, architecture


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_whole(path))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: give a folder that save_pretrained of transformers wrote") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is no configuration of a model")
    if "model_type" not in content and {"config", "corpora"} <= content.keys():
        raise ConfigError(f"{path}: this is the folder of a run, which needs no import")
    return content


def _architecture(path: Path, content: dict[str, Any]) -> Architecture:
    given = content.get("model_type")
    known: dict[str, Architecture] = {name: name for name in CLASSES}
    if not isinstance(given, str) or given not in known:
        near = nearest(given, known) if isinstance(given, str) else None
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(f"{path}: model_type is {_short(given)}; {hint}those that can be read: {', '.join(known)}")
    for key, reason in CODE_OR_CONVERSION.items():
        if content.get(key):
            raise ConfigError(f"{path}: {key} is {_short(content[key])}: {reason}")
    return known[given]


def _parsed(path: Path, architecture: Architecture, content: dict[str, Any]) -> PretrainedConfig:
    """Return the configuration that the installed class of transformers makes of the keys that it knows."""
    import transformers

    if Version(transformers.__version__).major < 5:
        raise ConfigError(
            f"{path}: an import needs transformers 5 or newer, and {transformers.__version__} is installed, whose "
            "configurations keep the rotation elsewhere"
        )
    try:
        kind = transformers.CONFIG_MAPPING[architecture]
        # A key may have another name in folders of earlier releases.
        known = {*kind().to_dict(), *kind.attribute_map, *OUTSIDE_THE_CLASS} - {"transformers_version", "dtype"}
        found: PretrainedConfig = kind.from_dict({key: _unbounded(content[key]) for key in content if key in known})
        if "head_dim" not in content or content["head_dim"] is None:
            # Some classes fill in head_dim, others do not.
            found.head_dim = getattr(found, "head_dim", None) or found.hidden_size // found.num_attention_heads
    except Exception as error:  # the class that a refused value raises differs between releases
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise ConfigError(f"{path}: transformers {transformers.__version__} refuses it: {reason}") from None
    return found


def _unbounded(value: object) -> object:
    """Return a value with infinity in place of transformers' form of it, for which JSON has no number."""
    if not isinstance(value, list):
        return value
    return [math.inf if each == {"__float__": "Infinity"} else each for each in value]


def _check_layers(path: Path, found: PretrainedConfig, architecture: Architecture) -> None:
    """Refuse a configuration without a layer of a type that all our models of its class have, or with other norms."""
    family = FAMILIES[architecture]
    if LATENT in family.takes and found.rms_norm_eps != LATENT_EPSILON:
        raise ConfigError(
            f"{path}: rms_norm_eps is {found.rms_norm_eps}, {LATENT_EPSILON} would be right: the class's norms of "
            "latents have that, and models here have one for all norms"
        )
    for needed, types in ((GATES, FULL), (MAMBA, FULL), (KDA, FULL), (MAMBA, LINEAR), (KDA, LINEAR)):
        if needed in family.needs and types not in found.layer_types:
            raise ConfigError(
                f"{path}: layer_types has no {types}: models here of this class have one such layer at least"
            )


def _same(given: object, expected: object) -> bool:
    """Return whether two values are the same; numbers up to rounding, as of a root."""
    if isinstance(given, int | float) and isinstance(expected, float):
        return math.isclose(given, expected, rel_tol=1e-12)
    return given == expected


def _unused(model: ModelConfig, architecture: Architecture) -> set[str]:
    """Return keys of windows, RoPE and dense layers that change no logits since no layer has these."""
    # Mistral has no list of its layers, so that its key alone decides.
    listed = NO_WINDOW in FAMILIES[architecture].takes
    full = listed and not any(window_of(view) for view in model.views.values())
    windows = {"sliding_window", "use_sliding_window"} if full else set()
    routed = architecture != "mixtral" and len(model.expert_layers) == model.layers
    widths = {"intermediate_size"} if routed else set()
    widths |= OF_EXPERTS if model.moe is None else set()
    return windows | widths | ({"rope_parameters"} if rotation(model) is None else set())


def _model(found: PretrainedConfig, kind: Architecture) -> dict[str, Any]:
    """Return our section `model` with the shapes of transformers' configuration."""
    moe, nanochat = expert_keys(found, kind), kind == "nanochat"
    return {
        "layers": found.num_hidden_layers,
        "hidden_size": found.hidden_size,
        "heads": found.num_attention_heads,
        "ffn_hidden_size": getattr(found, "moe_intermediate_size", found.intermediate_size)
        if moe
        else found.intermediate_size,
        "moe": moe,
        "vocab_size": found.vocab_size,
        "norm_epsilon": found.rms_norm_eps,
        "norm_weights": "zero_centred" if CENTRED in FAMILIES[kind].takes else not nanochat,
        "embedding_norm": nanochat,
        "qk_norm": nanochat or kind.startswith("qwen3"),
        "activation": "relu2" if nanochat else "swiglu",
        "tied": found.tie_word_embeddings,
        "logit_softcap": found.final_logit_softcapping if nanochat else None,
        "init_std": found.initializer_range,
        "embedding_multiplier": getattr(found, "embedding_multiplier", 1.0),
        **layer_keys(found, kind),
    }


def _short(value: object) -> str:
    text = re.sub(r"\s+", " ", json.dumps(value, default=repr))
    return text if len(text) <= 100 else f"{text[:97]}..."
