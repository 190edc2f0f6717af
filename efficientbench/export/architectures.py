"""Choose the class of transformers that computes exactly what our model does, and build its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import ATTENTION, attention_of
from efficientbench.architecture.variant import imported
from efficientbench.basics.errors import ConfigError
from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

Architecture = Literal[
    "qwen2", "llama", "mistral", "qwen3", "smollm3", "nanochat", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2"
]

CLASSES: dict[Architecture, str] = {
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "nanochat": "NanoChatForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
}


@dataclass(frozen=True)
class Exporter:
    """The counterpart of an attention variant in transformers."""

    architecture: Callable[[ModelConfig, bool], Architecture]
    """Model type, from (model, whether its tokenizer survives beside a Qwen2 configuration); raises `refusal`."""
    settings: Callable[[ModelConfig, Architecture], dict[str, Any]]
    """The attention's part of transformers' configuration, from (model, model type)."""
    imports: tuple[Architecture, ...]
    """Model types that have this attention."""
    keys: Callable[[PretrainedConfig], dict[str, Any]]
    """The keys attention, position and head_dim of our `model`, from transformers' configuration."""
    norms: Callable[[ModelConfig], dict[str, int]]
    """The width of each norm within the attention, by our name in a layer."""
    weights: Callable[[ModelConfig], dict[str, tuple[int, ...]]]
    """The shape of each other weight of the attention, by our name in a layer."""
    converted: Callable[[str, torch.Tensor, ModelConfig, Architecture], dict[str, torch.Tensor]]
    """A weight's tensors in transformers, from (our name in a layer, weight, model, model type); empty if foreign."""


def exporter_of(model: ModelConfig) -> Exporter:
    """Return the exporter of the model's attention. Raises ConfigError if its declaration names none."""
    if model.pattern is not None:
        raise refusal("model.pattern", "models whose layers are of several kinds are not exported yet")
    variant = attention_of(model)
    if variant.exporter is None:
        raise refusal(f"model.attention.kind={model.attention.kind}", variant.not_exported)
    exporter: Exporter = imported(variant.exporter)
    return exporter


def architecture_of(model: ModelConfig, tokenizer_survives_qwen2: bool = True) -> Architecture:
    """Return the model type of transformers that computes exactly what `model` does.

    Beside a Qwen2 configuration, some tokenizers change (see `hugging_face.survives_qwen2`). The model is then exported
    as the same model in Llama, with a bias of zeros on the output projection.

    Raises:
        ConfigError: no class computes this model; the message names what the nearest classes lack.
    """
    if model.pattern is None and not is_nanochats(model):
        _refuse_parts_of_nanochat(model)
    if model.pattern is None and model.rotated_dim != model.attention.rotated_dim(model.head_dim):
        raise refusal("model.position.share", "models with a partial rotation are not exported yet")
    return exporter_of(model).architecture(model, tokenizer_survives_qwen2)


def is_nanochats(model: ModelConfig) -> bool:
    """Return whether the backbone is nanochat's: RoPE, relu2, no experts, weightless norms, on queries and keys too."""
    plain = model.position.rope_base is not None and model.moe is None
    normed = model.qk_norm and model.embedding_norm and not model.norm_weights
    return plain and normed and model.activation == "relu2"


def _refuse_parts_of_nanochat(model: ModelConfig) -> None:
    """Refuse the parts that only transformers' NanoChat has, in a model that is not nanochat's."""
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


SCALING = {
    **{name: name for name in ("factor", "low_freq_factor", "high_freq_factor")},
    "original_seq_len": "original_max_position_embeddings",
}
"""transformers' names of the keys of RoPE's scaling, by ours."""


def rope_type(model: ModelConfig) -> dict[str, Any]:
    """Return the keys of transformers' `rope_parameters` beside the base."""
    scaling = model.position.rope_scaling
    if scaling is None:
        return {"rope_type": "default"}
    return {"rope_type": "llama3", **{SCALING[key]: value for key, value in scaling.model_dump().items()}}


def rope_keys(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of our RoPE from transformers' `rope_parameters`; a scaling of another type has none."""
    scaled = parameters.get("rope_type") == "llama3"
    scaling = {key: parameters.get(name) for key, name in SCALING.items()} if scaled else None
    return {"kind": "rope", "base": parameters.get("rope_theta"), "scaling": scaling}


def _settings(config: RunConfig, architecture: Architecture, eos_token_id: int) -> dict[str, Any]:
    model = config.model
    settings: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_value_heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.training.seq_len,
        "initializer_range": model.init_std,
        "rms_norm_eps": model.norm_epsilon,
        # If training tied the tables, the input's may be a multiple of the output's: see `tensors`.
        "tie_word_embeddings": model.tied and model.embedding_multiplier == 1,
        "attention_dropout": 0.0,
        "dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[config.training.dtype],
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
    }
    if model.position.rope_base is not None:
        settings["rope_parameters"] = {"rope_theta": model.position.rope_base, **rope_type(model)}
    settings |= exporter_of(model).settings(model, architecture)
    if architecture == "mistral":
        settings["sliding_window"] = None
    if architecture == "mixtral":
        assert model.moe is not None
        settings |= {"num_local_experts": model.moe.experts, "sliding_window": None}
    elif model.moe:
        settings |= {
            "num_experts": model.moe.experts,
            "moe_intermediate_size": model.ffn_hidden_size,
            "norm_topk_prob": True,
        }
    if architecture == "qwen2_moe":
        # The class always has a shared expert; one of width 0 adds nothing.
        settings["shared_expert_intermediate_size"] = 0
    if model.moe:
        settings |= {"num_experts_per_tok": model.moe.top_k, "router_aux_loss_coef": model.moe.auxiliary_loss}
    return settings
