"""Imported models: the logits of transformers, and the files of the folder when they are exported again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from oracles.oracle import build, relative_error, text, weights_of
from support import nanochat_files
from support.exported import CASES, checkpointed, config_of
from support.proofs import rest_as_proofs
from support.releases import TRANSFORMERS_5

from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.chat.styles import CHAT_TOKENS
from efficientbench.data_tools.tokenizer.engine import HARD_STRINGS
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.export.foreign_config import read_config
from efficientbench.export.hugging_face import Model, write_model
from efficientbench.export.importing import read_model, with_dtype
from efficientbench.export.safetensors_folder import Tensors
from efficientbench.export.tensors import imported, weight_shapes

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

pytestmark = [pytest.mark.usefixtures("single_rank", "without_fla"), TRANSFORMERS_5]
TINY: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,
}
EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.01}
UNPADDED = {"pad_token_id": None}
FOREIGN: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True, "rope_theta": 1e6, "use_sliding_window": False, "max_window_layers": 1},
    "llama": {"rms_norm_eps": 1e-5, "num_key_value_heads": 4},
    "llama, scaled": {
        **{"rope_theta": 1e4, "tie_word_embeddings": True},
        "rope_scaling": {
            **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "original_max_position_embeddings": 16,
        },
    },
    "mistral": {"sliding_window": None, "head_dim": 16},
    "mixtral": {"num_local_experts": 4, **EXPERTS},
    "qwen2_moe": {
        **{"num_experts": 5, "moe_intermediate_size": 40, "norm_topk_prob": True},
        **{"shared_expert_intermediate_size": 0, "decoder_sparse_step": 1, **EXPERTS},
    },
    "deepseek_v2": {
        **{"kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10},
        **{"num_key_value_heads": 4, "first_k_dense_replace": 2, "n_routed_experts": 3},
    },
    "deepseek_v3": {
        **{"kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10},
        **{"num_key_value_heads": 4, "num_hidden_layers": 3, "first_k_dense_replace": 1, "moe_intermediate_size": 40},
        **{"n_routed_experts": 6, "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 1, "topk_group": 1},
    },
    "deepseek_v3, alike": {
        **{"kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10},
        **{"num_key_value_heads": 4, "first_k_dense_replace": 0, "moe_intermediate_size": 40, "num_mtp_layers": 0},
        **{"n_routed_experts": 6, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
        **{"routed_scaling_factor": 1.0, "tie_word_embeddings": True},
    },
    "qwen3_moe": {
        **{"num_experts": 6, "moe_intermediate_size": 24, "norm_topk_prob": False, "head_dim": 16},
        **{"mlp_only_layers": [1], "num_hidden_layers": 4, **EXPERTS},
    },
    "qwen3": {"head_dim": 16},
    "qwen2, windows": {"num_hidden_layers": 3, "sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
    "qwen2, windows in no layer": {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 2},
    "qwen3, windows": {
        **{"num_hidden_layers": 3, "sliding_window": 7, "use_sliding_window": True},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "mistral, windows": {"sliding_window": 5},
    # By default its windows are in the layers without RoPE.
    "smollm3": {
        **{"num_hidden_layers": 4, "sliding_window": 5, "use_sliding_window": True},
        **{"no_rope_layer_interval": 2, **UNPADDED},
    },
    "granite_swa": {"num_hidden_layers": 5, "sliding_window": 5, "attention_multiplier": 12**-0.5, **UNPADDED},
    "granite_swa, lists": {
        **{"num_hidden_layers": 4, "sliding_window": 5, "attention_multiplier": 0.25, "head_dim": 16, **UNPADDED},
        **{"layer_rope_theta": [0, 500, 1e4, 500], "layer_types": ["full_attention", *["sliding_attention"] * 3]},
        **{"embedding_multiplier": 3.0, "tie_word_embeddings": False},
    },
    # As a published one: every fourth layer is full, a quarter of RoPE.
    "qwen3_5_text": {
        **{"num_hidden_layers": 4, "head_dim": 16, "rms_norm_eps": 1e-3, "linear_conv_kernel_dim": 3},
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12},
        **{"linear_value_head_dim": 8, "full_attention_interval": 4},
        "rope_parameters": {
            **{"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
            **{"mrope_section": [1, 1, 0], "mrope_interleaved": True},
        },
    },
    # As a published one: half of RoPE; its chunks are not ours.
    "bamba": {
        **{"num_hidden_layers": 4, "attn_layer_indices": [1, 3], "head_dim": 16, "mamba_n_heads": 8},
        **{"mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 3},
        **{"mamba_chunk_size": 10, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, **UNPADDED},
    },
    "kimi_linear": {
        **{"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        **{"linear_num_heads": 3, "linear_head_dim": 8, "num_key_value_heads": 4, "kv_lora_rank": 16},
        **{"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "mlp_layer_types": ["dense"] * 3},
        **{"rms_norm_eps": 1e-6, **UNPADDED},
    },
    # As a published one: the keys of its recurrent layers in a part of their own, the first layer dense.
    "kimi_linear, experts": {
        **{"num_hidden_layers": 4, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 12},
        **{"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "first_k_dense_replace": 1},
        **{"num_experts": 6, "num_experts_per_token": 3, "moe_intermediate_size": 24, "rms_norm_eps": 1e-6},
        "linear_attn_config": {
            **{"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 8, "num_heads": 4},
            "short_conv_kernel_size": 3,
        },
        **UNPADDED,
    },
    "smollm3, lists": {
        **{"num_hidden_layers": 4, "sliding_window": 5, "use_sliding_window": True, "no_rope_layers": [1, 0, 0, 1]},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        **{"attention_bias": True, **UNPADDED},
    },
}
"""Model type, and what is special → keys of a folder that none of our code wrote."""


def with_weights(config: RunConfig, weights: dict[str, torch.Tensor]) -> GPT:
    """Our model with these weights, all of which it has."""
    from efficientbench.model.initial_weights import EXPERTS, expert_names, global_tensors

    model, used = build(config), set()
    for name, parameter in global_tensors(model).items():
        names = expert_names(name, len(parameter)) if EXPERTS in name else [name]
        used |= {*names}
        found = [weights[each] for each in names]
        parameter.data.copy_(torch.stack(found) if EXPERTS in name else found[0])
    assert used == weights.keys()
    return model


def read(folder: Path) -> tuple[RunConfig, dict[str, torch.Tensor]]:
    tensors = Tensors(folder)
    config, architecture, _ = read_config(folder, "folder")
    config = with_dtype(config, tensors.dtype)
    return config, dict(imported(tensors, config.model, architecture))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "overrides", "tokenizer"), rest_as_proofs(16, (each[:3] for each in CASES.values())), ids=CASES
)
def test_an_exported_model_is_imported_unchanged(
    name: str, overrides: list[str], tokenizer: str, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    config, tokens = config_of(name, *overrides), text(config_of(name), 16)
    model = build(config)
    weights = checkpointed(weights_of(model), padding=0)
    assert {key: tuple(weight.shape) for key, weight in weights.items()} == weight_shapes(config.model)
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        write_model(Model(config, weights, tokenizers[tokenizer]), folder)
        config, weights = read(folder)
    assert files(tmp_path / "first") == files(tmp_path / "second")
    assert relative_error(with_weights(config, weights)(tokens), model(tokens)) < 1e-5


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_model_saved_by_transformers_has_its_logits(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind.partition(",")[0], **TINY | FOREIGN[kind]))
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    for parameter_name, parameter in model.named_parameters():
        if "shared_expert" in parameter_name or "o_proj.bias" in parameter_name:
            parameter.data.zero_()
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    config, weights = read(tmp_path)
    assert (config.training.dtype, config.training.seq_len, config.model.init_std) == ("fp32", 32, 0.2)
    tokens = text(config, 32)
    assert relative_error(with_weights(config, weights)(tokens), model.eval()(tokens).logits) < 1e-5


def test_nanochats_own_files_have_transformers_logits_and_tiktokens_ids(
    tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, NanoChatConfig

    encoding = nanochat_files.encoding_of(tokenizers["own"])
    # nanochat's epsilon is torch's own.
    shapes = TINY | {"vocab_size": encoding.n_vocab, "intermediate_size": 192, "rms_norm_eps": torch.finfo().eps}
    model = AutoModelForCausalLM.from_config(NanoChatConfig(**shapes)).eval()
    model.model.embed_tokens.weight.data = model.model.embed_tokens.weight.bfloat16().float()
    nanochat_files.write(tmp_path / "d2", model, encoding)
    config, architecture, tensors, tokenizer = read_model(tmp_path / "d2", "d2")
    assert (config.name, config.training.dtype, config.training.seq_len) == ("nanochat_d2", "fp32", 32)
    weights = dict(imported(tensors, config.model, architecture))
    tokens = text(config, 32)
    assert relative_error(with_weights(config, weights)(tokens), model(tokens).logits) < 1e-5
    assert tokenizer.special_tokens() == {name: encoding.encode_single_token(name) for name in CHAT_TOKENS}
    assert tokenizer.eod_id == encoding.encode_single_token("<|bos|>")
    texts = [*HARD_STRINGS, Path(__file__).read_text(), "12345 aaaaaaa  words'LL", "<|bos|>"]
    assert tokenizer.encode_batch(texts) == [encoding.encode_ordinary(each) for each in texts]


def test_bf16_stays_bf16(tokenizers: dict[str, TextTokenizer], tmp_path: Path) -> None:
    config = config_of("gqa_1.5B", "training.dtype=bf16", "model.embedding_multiplier=1")
    before = checkpointed(weights_of(build(config)), padding=0)
    write_model(Model(config, before, tokenizers["qwen2"]), tmp_path)
    found, weights = read(tmp_path)
    assert found.training.dtype == "bf16"
    assert weights.keys() == before.keys()
    assert all(weights[name].dtype == torch.bfloat16 for name in weights)
    assert all(torch.equal(weights[name], before[name]) for name in weights)


def test_keys_of_published_folders_are_accepted(tmp_path: Path) -> None:
    """The form of releases before 5, with keys that no class reads and those that change nothing."""
    older = {
        **{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643},
        **{"hidden_act": "silu", "model_type": "qwen2", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0},
        **{"sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 24, "use_mrope": False},
        **{"tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1"},
    }
    (tmp_path / "config.json").write_text(json.dumps(TINY | older | {"use_cache": True, "rope_scaling": None}))
    config, architecture, _ = read_config(tmp_path, "Qwen2.5-0.5B")
    assert (config.name, architecture) == ("qwen2_Qwen2.5-0.5B", "qwen2")
    model = config.model
    assert (model.position.rope_base, model.head_dim, model.tied, model.norm_epsilon) == (1e6, 12, True, 1e-6)
    assert (model.key_value_heads, model.embedding_multiplier) == (2, 1.0)


def test_a_key_may_have_its_older_name(tmp_path: Path) -> None:
    experts = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True}
    (tmp_path / "config.json").write_text(json.dumps(TINY | experts | {"model_type": "qwen3_moe", "head_dim": 16}))
    config, *_ = read_config(tmp_path, "folder")
    assert config.model.moe is not None
    assert (config.model.moe.experts, config.model.moe.top_k, config.model.ffn_hidden_size) == (6, 3, 40)
