"""Choose the class of transformers that computes exactly what a model of ours does, and build its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from efficientbench.config.errors import ConfigError
from efficientbench.config.model import GQAConfig, MLAConfig, ModelConfig, NSAConfig, RopeConfig
from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Architecture = Literal[
    "qwen2", "llama", "qwen3", "smollm3", "nanochat", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2"
]

CLASSES: dict[Architecture, str] = {
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "nanochat": "NanoChatForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
}

EXPORTABLE = (
    "what can be exported: GQA and MQA with rope, with experts or without, with qk_norm or without; GQA and MQA "
    "without positions or experts; MLA without experts; nanochat's backbone"
)
ONE_BIAS_FOR_ALL = ("llama", "smollm3", "qwen3", "qwen3_moe", "nanochat")
"""Classes with biases on all four projections of attention or on none."""


def architecture_of(model: ModelConfig, tokenizer_survives_qwen2: bool = True) -> Architecture:
    """Return the model type of transformers that computes exactly what `model` does.

    Beside a Qwen2 configuration, some tokenizers change (see `tokenizers.survives_qwen2`). Llama with a bias of zeros
    on the output projection is then exported, which is the same model.

    Raises:
        ConfigError: there is none; the message names what the nearest classes lack.
    """
    attention, position = model.attention, model.position.kind
    if _is_nanochats(model):
        return "nanochat"
    _refuse_parts_of_nanochat(model)
    if isinstance(attention, NSAConfig):
        raise _refusal("model.attention.kind=nsa", "no class of transformers has Native Sparse Attention")
    if isinstance(attention, MLAConfig):
        if model.moe:
            raise _refusal(
                "model.attention.kind=mla with model.moe",
                "transformers' DeepseekV2 does not scale the weights of a token's experts to a sum of 1, and its "
                "DeepseekV3 scores experts by sigmoids where this model takes a softmax",
            )
        return "deepseek_v2"
    if position == "rope":
        if model.qk_norm:
            return "qwen3_moe" if model.moe else "qwen3"
        if model.moe:
            return "qwen2_moe" if attention.qkv_bias else "mixtral"
        return "qwen2" if attention.qkv_bias and tokenizer_survives_qwen2 else "llama"
    if position != "none":
        raise _refusal(f"model.position.kind={position}", _WITHOUT_A_CLASS[position])
    if model.moe:
        raise _refusal(
            "model.position.kind=none with model.moe", "no class of transformers has such experts without RoPE"
        )
    if model.qk_norm:
        raise _refusal(
            "model.position.kind=none with model.qk_norm", "no class of transformers has norms on queries without RoPE"
        )
    return "smollm3"


def _is_nanochats(model: ModelConfig) -> bool:
    plain = isinstance(model.attention, GQAConfig) and model.position.kind == "rope" and model.moe is None
    normed = model.qk_norm and model.embedding_norm and not model.norm_weights
    return plain and normed and model.activation == "relu2"


def _refuse_parts_of_nanochat(model: ModelConfig) -> None:
    """Refuse what NanoChat alone has beside RMSNorm, in a model that is not NanoChat's."""
    keys = {
        "activation=relu2": model.activation == "relu2",
        "embedding_norm=true": model.embedding_norm,
        f"logit_softcap={model.logit_softcap}": model.logit_softcap is not None,
    }
    found = [f"model.{key}" for key, there in keys.items() if there]
    if found:
        raise _refusal(
            ", ".join(found),
            "of transformers' classes NanoChat has this, and it has GQA, rope, activation=relu2, embedding_norm=true, "
            "qk_norm=true and norm_weights=false together, and no experts",
        )


_WITHOUT_A_CLASS = {
    "absolute": "transformers' classes that add sinusoids to the embedding (XGLM, …) have LayerNorm and no SwiGLU",
    "learnable_absolute": "transformers' classes with a trained row for each position (GPT-2, OPT, …) have LayerNorm "
    "and no SwiGLU",
    "relative": "transformers' classes with T5's bias on the scores (T5, …) are encoders with decoders, with no SwiGLU "
    "of this kind",
    "alibi": "transformers' classes with ALiBi (Bloom, MPT, Falcon) have LayerNorm and no SwiGLU",
}


def _refusal(keys: str, reason: str) -> ConfigError:
    return ConfigError(f"{keys}: this model has no exact counterpart: {reason}; {EXPORTABLE}")


def transformers_config(config: RunConfig, architecture: Architecture, eos_token_id: int) -> PretrainedConfig:
    """Return transformers' configuration of the architecture.

    Raises:
        ConfigError: the installed transformers does not know it.
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
        # Where training tied them, the input's table may be a multiple of the output's: see `tensors`.
        "tie_word_embeddings": model.tied and model.embedding_multiplier == 1,
        "attention_dropout": 0.0,
        "dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[config.training.dtype],
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
    }
    if isinstance(model.position, RopeConfig):
        settings["rope_parameters"] = {"rope_type": "default", "rope_theta": model.position.base}
    attention = model.attention
    if isinstance(attention, MLAConfig):
        return settings | attention.model_dump(exclude={"kind"}) | {"first_k_dense_replace": model.layers}
    assert isinstance(attention, GQAConfig)
    settings["head_dim"] = model.head_dim
    if architecture in ONE_BIAS_FOR_ALL:
        settings["attention_bias"] = attention.qkv_bias
    if architecture == "llama":
        settings["mlp_bias"] = False
    elif architecture == "smollm3":
        settings["no_rope_layers"] = [0] * model.layers
    elif architecture == "nanochat":
        settings |= {"hidden_act": "relu2", "final_logit_softcapping": model.logit_softcap}
    elif architecture == "mixtral":
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
