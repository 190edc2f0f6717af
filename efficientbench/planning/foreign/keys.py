"""The keys of a config.json: each is read by a formula, or is known to change no shape, or is refused by its name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from efficientbench.basics.errors import ConfigError, nearest
from efficientbench.basics.foreign import MOST_LAYERS

WITHOUT_SHAPES = {
    *("architectures", "auto_map", "base_model_pp_plan", "base_model_tp_plan", "custom_generate", "dtype", "id2label"),
    *("is_decoder", "is_encoder_decoder", "label2id", "max_length", "max_position_embeddings", "max_sequence_length"),
    *("model_max_length", "model_type", "original_max_position_embeddings", "pretraining_tp", "problem_type"),
    *("quantization_config", "return_dict", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache"),
    *("chunk_size_feed_forward", "attn_implementation", "cache_implementation", "use_flash_attention_2", "vocab_file"),
    # Initial values.
    *("initializer_range", "embedding_initializer_range", "init_std", "initializer_factor", "rescale_prenorm_residual"),
    *("time_step_min", "time_step_max", "time_step_floor", "time_step_limit", "time_step_init_scheme"),
    *("time_step_scale", "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max"),
    *("linear_dt_init_floor", "moe_norm_min", "z_loss_coefficient", "mamba_dt_min", "mamba_dt_max", "mamba_dt_limit"),
    # Positions that nothing learns.
    *("partial_rotary_factor", "rotary_dim", "rotary_pct", "rotary_emb_base", "alibi", "no_rope_layers"),
    *("no_rope_layer_interval", "layer_rope_theta", "position_embedding_type", "attn_temperature_tuning", "attn_scale"),
    *("floor_scale", "mrope_section", "mrope_interleaved", "partial_rotary_factors", "use_mrope", "mscale"),
    # Factors, bounds and functions of values.
    *("hidden_act", "hidden_activation", "activation", "activation_function", "mlp_hidden_act", "mamba_hidden_act"),
    *("attention_multiplier", "attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier"),
    *("key_multiplier", "lm_head_multiplier", "logits_scaling", "logit_scale", "mlp_multipliers"),
    *("residual_multiplier", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier", "scale_emb"),
    *("scale_depth", "dim_model_base", "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping"),
    *("clip_qkv", "swiglu_limit", "swiglu_alpha", "attention_value_scale", "scale_attn_weights"),
    *("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "residual_in_fp32", "slow_but_exact"),
    *("apply_residual_connection_post_layernorm", "use_parallel_residual_sum", "mamba_norm_before_gate"),
    *("linear_allow_neg_eigval", "use_bidirectional_attention", "layerdrop", "block_dim", "is_causal"),
    # How experts are chosen, and how kernels work.
    *("norm_topk_prob", "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise", "input_jitter_noise"),
    *(
        "n_group",
        "topk_group",
        "topk_method",
        "scoring_func",
        "aux_loss_alpha",
        "seq_aux",
        "moe_router_activation_func",
    ),
    *("moe_renormalize", "use_grouped_topk", "num_expert_group", "use_expert_bias", "moe_shared_expert_overlap"),
    *("ep_size", "chunk_size", "mamba_chunk_size", "use_mamba_kernels", "use_mambapy", "use_falcon_mambapy"),
    *("use_associative_scan", "num_logits_to_keep", "mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
    *("experts_implementation", "pad_token", "sep_token"),
}
"""Keys that change no shape of any class that has a reader."""
_WITHOUT_SHAPES = re.compile(
    r"_.*|.*token_ids?|.*token_index|.*dropout.*|.*_pdrop|.*_eps|.*_epsilon|norm_eps|output_.*|summary_.*|rope_.*"
)
_OF_LAYERS = ("per_layer_config", "block_configs")
_OLD_TYPES = {"mamba": "linear_attention", "attention": "full_attention"}
"""Names of layers' types in older files → their present names."""
REQUIRED: Any = object()


class Keys:
    """The keys of one configuration; `finish` refuses those that nothing has read.

    Every method raises ConfigError: the key is missing, or its value is none that can be counted.
    """

    def __init__(self, where: str, content: Mapping[str, Any]) -> None:
        self.where = where
        self._content = content
        self._read: set[str] = set()
        self._missing: list[str] = []

    def under(self, names: Mapping[str, Any]) -> Keys:
        """Return these keys with further ones, by which a reader finds what the class calls by other names."""
        found = Keys(self.where, {**self._content, **names})
        found._read, found._missing = self._read, self._missing
        return found

    def refuse(self, problem: str) -> NoReturn:
        """Raise ConfigError with the name of the file: about missing keys first, from which other problems follow."""
        if self._missing:
            strange = self._unread()
            hint = f"; no key of {self._content.get('model_type')}: {', '.join(strange)}" if strange else ""
            problem = f"{', '.join(self._missing)}: missing{hint}"
        raise ConfigError(f"{self.where}: {problem}")

    def get(self, *names: str, default: Any = REQUIRED) -> Any:
        """Return the value of the first of these keys that is there; for a missing one 1, which `finish` refuses."""
        self._read.update(names)
        for name in names:
            if name in self._content:
                return self._content[name]
        if default is REQUIRED:
            # The reader goes on, so that the message can name keys that it never reads.
            self._missing.append(names[0])
            return 1
        return default

    def number(self, *names: str, default: Any = REQUIRED) -> int:
        """Return a whole number above 0."""
        found = self.maybe(*names, default=default)
        if found is None:
            self.refuse(f"{names[0]} is null, and a whole number above 0 would be right")
        return found

    def maybe(self, *names: str, default: Any = None) -> int | None:
        """Return a whole number above 0, or None where it is null."""
        found = self.get(*names, default=default)
        if found is None:
            return None
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 1 << 40:
            self.refuse(f"{names[0]} is {_short(found)}, and a whole number above 0 would be right")
        if "layer" in names[0] and found > MOST_LAYERS:
            self.refuse(f"{names[0]} is {found}, and at most {MOST_LAYERS} would be right")
        return found

    def flag(self, *names: str, default: Any = REQUIRED) -> bool:
        """Return a value that is true or false; null is false."""
        found = self.get(*names, default=default)
        if found is not None and not isinstance(found, bool):
            self.refuse(f"{names[0]} is {_short(found)}, and true or false would be right")
        return bool(found)

    def ignore(self, *names: str) -> None:
        """Take keys as read that change no shape of this model."""
        self._read.update(names)

    def only(self, name: str, *allowed: object) -> None:
        """Refuse a key whose value is none of `allowed`; null and an absent key pass."""
        found = self.get(name, default=None)
        if found is not None and found not in allowed:
            right = " or ".join(map(_short, allowed)) or "null"
            self.refuse(f"{name} is {_short(found)}, whose shapes are not counted: {right} would be")

    def listed(self, name: str, length: int, allowed: Sequence[str], default: Sequence[str] | None) -> list[str]:
        """Return a list with a type for each layer; `default`: for an absent key, None: it must be there."""
        found = self.get(name, default=REQUIRED if default is None else None)
        found = default if found is None else found
        if not isinstance(found, list | tuple) or len(found) != length:
            self.refuse(f"{name} is {_short(found)}, and a list with a type for each of {length} layers would be right")
        types = [_OLD_TYPES.get(each, each) if isinstance(each, str) else each for each in found]
        for each in types:
            if each not in allowed:
                self.refuse(f"{name}: a layer of type {_short(each)} is not counted; those are: {', '.join(allowed)}")
        return types

    def finish(self) -> None:
        """Refuse keys that are missing, and keys that no formula has read and that might change shapes."""
        if self._missing:
            self.refuse("")
        for name in _OF_LAYERS:
            if self._content.get(name):
                self.refuse(f"{name} is set: layers differ in their keys, which is not counted")
        for name in self._unread():
            near = nearest(name, self._read)
            hint = f"; did you mean {near}?" if near else ""
            self.refuse(
                f"{name} is {_short(self._content[name])}: no formula of {self._content.get('model_type')} reads this "
                f"key, which might change shapes{hint}"
            )

    def _unread(self) -> list[str]:
        """Return the keys with a value that no formula has read so far, and that might change shapes."""
        known = self._read | WITHOUT_SHAPES
        return [
            name
            for name, value in self._content.items()
            if name not in known and value is not None and not _WITHOUT_SHAPES.fullmatch(name)
        ]


def _short(value: object) -> str:
    text = re.sub(r"\s+", " ", json.dumps(value, default=repr))
    return text if len(text) <= 100 else f"{text[:97]}..."
