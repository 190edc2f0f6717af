"""Plans of config.json files: counted without transformers, and refused by the key that is not counted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.plan import plan
from efficientbench.config.load import resolve
from efficientbench.planning.foreign.mixers import delta_net, mamba2
from efficientbench.planning.foreign.read import shape_of

LLAMA: dict[str, Any] = {
    **{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 5e5},
    **{"tie_word_embeddings": False, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5, "hidden_act": "silu"},
}
DEEPSEEK: dict[str, Any] = {
    **{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048},
    **{"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1},
    **{"n_routed_experts": 256, "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 1536},
    **{"qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "first_k_dense_replace": 3},
    **{"vocab_size": 129280, "num_nextn_predict_layers": 1, "attention_bias": False, "topk_method": "noaux_tc"},
    **{"auto_map": {"AutoModel": "modeling_deepseek.DeepseekV3Model"}, "quantization_config": {"quant_method": "fp8"}},
}


def refusal(content: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        shape_of("config.json", content)
    return str(caught.value)


def test_published_models_have_their_published_sizes() -> None:
    """Parameters of Llama 3.1 8B; of DeepSeek-V3 671 billion, of which 37 compute a token (arXiv 2412.19437)."""
    llama, deepseek = shape_of("config.json", LLAMA), shape_of("config.json", DEEPSEEK)
    assert (llama.parameters, llama.active) == (8_030_261_248, 8_030_261_248)
    assert llama.added_bytes(2) == 2 * 32 * 8 * 128 * 2
    assert f"{deepseek.parameters / 1e9:.0f} {deepseek.active / 1e9:.0f}" == "671 38"
    # DeepSeek counts without the embedding's table.
    assert f"{(deepseek.active - deepseek.table) / 1e9:.0f}" == "37"
    assert deepseek.added_bytes(2) == 61 * (512 + 64) * 2
    said = " ".join(deepseek.notes)
    assert all(each in said for each in ("1 further layer for multi-token prediction", "quantized", "auto_map"))


def test_recurrent_layers_of_others_are_counted_as_our_own() -> None:
    theirs = {
        "gdn_1.5B": delta_net(1536, key_heads=6, heads=6, key_dim=128, value_dim=256, kernel=4),
        "mamba2_1.5B": mamba2(1536, 3072, 48, 1, 128, 4, biases=(False, True, False), norm=True),
    }
    for name, mixer in theirs.items():
        model = resolve(name).model
        costs = model.attention_variant.costs
        assert mixer.parameters == costs.parameters(model)
        assert 2 * mixer.weights == costs.projection_flops(model)
        assert mixer.causal_flops(2048) == costs.causal_score_flops(model, 2048)


def test_a_window_bounds_the_state_and_a_layer_without_one_does_not() -> None:
    window = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}
    shape = shape_of("config.json", window)
    assert shape.added_bytes(2) == 0
    assert shape.cache_bytes(100_000, 2) == shape.cache_bytes(4096, 2) > shape.cache_bytes(4095, 2)
    assert shape.flops(8192).training < shape_of("config.json", {**window, "sliding_window": None}).flops(8192).training


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_key_value_heads": None, "n_kv_heads": 8}, "n_kv_heads is 8: no formula of llama reads this key"),
        ({"num_attention_heads": ..., "num_heads": 32}, "num_attention_heads: missing; no key of llama: num_heads"),
        ({"hidden_size": ..., "d_model": 4096}, "hidden_size: missing; no key of llama: d_model"),
        ({"mamba_d_state": 16}, "mamba_d_state is 16: no formula of llama reads this key, which might change shapes"),
        ({"intermediate_sizes": [1, 2]}, "did you mean intermediate_size?"),
        ({"num_hidden_layers": "32"}, 'num_hidden_layers is "32", and a whole number above 0 would be right'),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, and at most 10000 would be right"),
        ({"attention_bias": "yes"}, 'attention_bias is "yes", and true or false would be right'),
        ({"model_type": "lama"}, "model_type is 'lama', of which no reader counts the shapes; did you mean llama?"),
        ({"model_type": "t5"}, "model_type is 't5', of which no reader counts the shapes"),
        ({"model_type": "gemma3_text", "layer_types": ["linear"] * 32}, 'a layer of type "linear" is not counted'),
        ({"model_type": "opt", "ffn_dim": 9, "word_embed_proj_dim": 512}, "word_embed_proj_dim is 512, whose shapes"),
    ],
)
def test_what_is_not_counted_is_refused_by_its_key(changes: dict[str, Any], said: str) -> None:
    content = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    assert said in refusal(content)


def test_rows_stand_in_one_table_beside_our_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "whole.json").write_text(json.dumps({"model_type": "some_vl", "text_config": LLAMA}))
    plan(
        str(tmp_path / "model"), [str(tmp_path / "whole.json"), "gqa_0.5B", "training.seq_len=1024"], device="H100 SXM"
    )
    lines = capsys.readouterr().out.splitlines()
    rows = {re.split(r"\s{2,}", line)[0]: re.split(r"\s{2,}", line) for line in lines}
    flops = f"{shape_of('config.json', LLAMA).flops(1024).training:,}"
    assert rows["model (llama)"][1:5] == ["8,030,261,248", "8,030,261,248", flops, "131,072"]
    assert rows["gqa_0.5B"][1] == "494,032,768"
    assert len(rows["model (llama)"]) == len(rows["gqa_0.5B"]) == len(rows["model"])
    assert any("what reads images or sound is left out" in line for line in lines)


@pytest.mark.parametrize("tokens", [1024, 4096])
def test_sequences_beyond_learned_positions_are_named(
    tokens: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt2 = {"model_type": "gpt2", "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    opt = {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    opt |= {"ffn_dim": 3072, "max_position_embeddings": 2048, "word_embed_proj_dim": 768, "vocab_size": 50272}
    for name, content in {"gpt2": gpt2, "opt": opt, "llama": LLAMA}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    plan(str(tmp_path / "gpt2"), [str(tmp_path / "opt"), str(tmp_path / "llama"), f"training.seq_len={tokens}"])
    said = [line for line in capsys.readouterr().out.splitlines() if "learned positions" in line]
    assert [line.partition(" learned")[0] for line in said] == ["gpt2: has 1,024", "opt: has 2,048"]
    assert [f"training.seq_len={n} is its longest" in line for n, line in zip((1024, 2048), said, strict=True)] == [
        tokens > 1024
    ] * 2


def test_options_of_one_run_are_refused_for_a_table() -> None:
    for options in ({"world": 8}, {"generate": True}, {"price_per_hour": 2.0}):
        with pytest.raises(typer.BadParameter, match="goes with one run: leave it out of a table"):
            plan("gqa_0.5B", ["mla_0.5B"], **options)  # type: ignore[arg-type]
