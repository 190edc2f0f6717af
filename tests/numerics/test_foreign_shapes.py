"""Shapes of config.json files beside the classes of transformers that these describe, built small."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache, PreTrainedModel, StaticCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.costs.model import COUNTER_BYTES, cache_bytes, count_parameters, flops_per_token
from efficientbench.devices.registry import device_of_backend
from efficientbench.export.architectures import architecture_of, transformers_config
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.planning.foreign.decoder import DecoderShape
from efficientbench.planning.foreign.read import READERS, shape_of
from efficientbench.planning.foreign.recurrent import RECURRENT
from efficientbench.planning.foreign.table import Where, foreign_row, own_row

SMALL = {
    **{"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24},
    **{"intermediate_size": 96, "vocab_size": 128, "sliding_window": 8, "use_sliding_window": True},
    **{"max_window_layers": 4, "attention_chunk_size": 8, "max_position_embeddings": 64, "n_positions": 64},
    **{"n_embd": 64, "n_layer": 3, "n_head": 4, "ffn_dim": 96, "ffn_hidden_size": 96, "word_embed_proj_dim": 64},
    **{"num_kv_heads": 2, "intermediate_size_mlp": 80, "num_experts": 6, "num_local_experts": 6},
    **{"n_routed_experts": 6, "moe_num_experts": 6, "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2},
    **{"moe_intermediate_size": 40, "shared_expert_intermediate_size": 56, "shared_intermediate_size": 56},
    **{"moe_shared_expert_intermediate_size": 56, "n_group": 1, "topk_group": 1, "kv_lora_rank": 20},
    **{"q_lora_rank": 28, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 16},
    **{"linear_num_heads": 4, "linear_head_dim": 12, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128},
    **{"mamba_d_state": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2},
    **{"num_heads": 8, "state_size": 16, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2},
    **{"mamba_chunk_size": 8, "chunk_size": 8, "block_multiple_of": 8},
}
"""Small values of keys of all classes."""
PER_CLASS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 5]},
    "deepseek_v2": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "glm4_moe_lite": {"num_key_value_heads": 4},
    "dots1": {"n_shared_experts": 1},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "mamba"] * 2},
    "helium": {"head_dim": 16},
    "kimi_linear": {"num_key_value_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 4},
    "mamba": {"intermediate_size": 128},
    "falcon_mamba": {"intermediate_size": 128},
    "mamba2": {"head_dim": 16},
    "minicpm3": {"num_key_value_heads": 4},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba"],
        "num_hidden_layers": 5,
    },
    "youtu": {"num_key_value_heads": 4},
}
"""Further values of a class."""
QUICK = ("llama", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_next")
"""Classes that the default tests build; the others are proofs."""
TOKENS, LONG = 8, 24
"""Tokens within all windows, and beyond them."""


@pytest.fixture(scope="module", autouse=True)
def _kernels_of_torch() -> Iterator[None]:
    """Make classes that are loaded here take torch's own operations, which run on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fla", None)
        yield


def small_config(kind: str, **changes: Any) -> Any:
    config_class = CONFIG_MAPPING[kind]
    names = {*config_class().to_dict(), *config_class.attribute_map}
    given = {key: value for key, value in SMALL.items() if key in names}
    if kind == "cohere2" or "qk_rope_head_dim" in given:
        given.pop("head_dim", None)
    return config_class(**{**given, **PER_CLASS.get(kind, {}), **changes})


def shape_like(config: Any) -> DecoderShape:
    """Return the shapes of what save_pretrained would write."""
    return shape_of("config.json", json.loads(config.to_json_string()))


def built(config: Any, device: str) -> PreTrainedModel:
    config._experts_implementation = "eager"
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def parameters(config: Any) -> int:
    return sum(parameter.numel() for parameter in built(config, "meta").parameters())


def cached_bytes(model: PreTrainedModel, tokens: int) -> int:
    """Return the bytes of the tensors in the class's own cache with room for so many tokens."""
    is_recurrent = "cache_params" in model.forward.__code__.co_varnames
    cache = DynamicCache(config=model.config) if is_recurrent else StaticCache(model.config, max_cache_len=tokens)
    name = "cache_params" if is_recurrent else "past_key_values"
    with torch.no_grad():
        model(input_ids=torch.ones(1, tokens, dtype=torch.long), use_cache=True, **{name: cache})
    found: list[torch.Tensor] = []
    for layer in cache.layers:
        for name in ("keys", "values"):
            found += [each] if isinstance(each := getattr(layer, name, None), torch.Tensor) else []
        for name in ("conv_states", "recurrent_states"):
            found += [each for each in getattr(layer, name, {}).values() if each is not None]
    return sum(each.numel() * each.element_size() for each in found)


def marked(kinds: Any) -> list[Any]:
    return [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.proof) for kind in kinds]


NOT_COUNTED = {"llama4_text": "its experts compute every token in the class's own code"}
"""Classes, beside those with recurrent layers, whose FLOPs torch's counter sees otherwise → why."""


def check(config: Any) -> None:
    """Check parameters, FLOPs and the bytes of the cache against the class."""
    shape, model = shape_like(config), built(config, "cpu")
    assert shape.parameters == parameters(config)
    assert shape.cache_bytes(LONG, 4) - COUNTER_BYTES == cached_bytes(model, LONG)
    if config.model_type in {*RECURRENT, *NOT_COUNTED}:
        return
    # Within all windows eager attention computes the full square.
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(1, TOKENS, dtype=torch.long), use_cache=False)
    assert counter.get_total_flops() == pytest.approx(shape.flops(TOKENS).forward_full_square * TOKENS, rel=0.01)


@pytest.mark.parametrize("kind", marked(READERS))
def test_a_class_has_the_parameters_the_cache_and_the_flops_that_are_counted(kind: str) -> None:
    check(small_config(kind))


CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"num_attention_heads": 8, "head_dim": 20, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("mistral", {"sliding_window": None}),
    ("gemma3_text", {"sliding_window": 10, "layer_types": ["full_attention", "sliding_attention"] * 4}),
    ("gpt_oss", {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 16}),
    ("deepseek_v3", {"q_lora_rank": None, "kv_lora_rank": 36, "n_shared_experts": 2, "first_k_dense_replace": 2}),
    ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    ("qwen3_next", {"linear_num_value_heads": 6, "layer_types": ["linear_attention", "full_attention"] * 4}),
    ("qwen2", {"max_window_layers": 2, "sliding_window": 12}),
    ("granitemoehybrid", {"num_local_experts": 0, "layer_types": ["mamba", "attention"] * 4}),
]


@pytest.mark.proof
@pytest.mark.parametrize(("kind", "changes"), CHANGED)
def test_a_changed_configuration_is_counted_as_its_class_is_built(kind: str, changes: dict[str, Any]) -> None:
    check(small_config(kind, **changes))


def test_every_class_is_counted_or_refused_by_its_name() -> None:
    others = [kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind not in READERS]
    for kind in others:
        with pytest.raises(ConfigError, match=f"model_type is '{kind}', of which no reader counts the shapes"):
            shape_of("config.json", {"model_type": kind})
    assert len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - len(others) >= 70


@pytest.mark.proof
@pytest.mark.parametrize(
    "words", ["gqa_0.5B", "mqa_0.5B", "mla_0.5B", "moe_0.5Bx8 model.qk_norm=true model.attention.qkv_bias=false"]
)
def test_our_runs_have_the_same_figures_when_they_are_read_from_their_export(words: str) -> None:
    name, *keys = words.split()
    # An export has another table for the logits where the embedding is multiplied.
    config = resolve(name, overrides=["training.seq_len=2048", "model.embedding_multiplier=1", *keys])
    model = config.model
    shape = shape_like(transformers_config(config, architecture_of(model), 0))
    assert shape.parameters == count_parameters(model).total
    assert shape.active == count_parameters(model).active
    assert shape.flops(2048) == flops_per_token(model, 2048)
    assert shape.cache_bytes(5000, 2) == cache_bytes(model, 5000, "bf16")
    where = Where(device_of_backend("nccl"), device_rates("H100 SXM", "bf16"))
    own, read = own_row(config, 2048, where), foreign_row(name, shape, 2048, where)
    assert read.training_bytes == pytest.approx(own.training_bytes, rel=0.01)
    assert read.generation_bytes == pytest.approx(own.generation_bytes, rel=0.01)
    assert read.tokens_s == pytest.approx(own.tokens_s, rel=0.03)
    assert read.decode_s == pytest.approx(own.decode_s, rel=0.01)
