"""Exported models in transformers: the same logits as ours, for each class that stands for one of our architectures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from oracles.oracle import build, relative_error, text, weights_of
from safetensors import safe_open
from support.configs import tiny
from support.exported import CASES, WINDOWS, checkpointed, config_of

from efficientbench.architecture.registry import ATTENTION, POSITIONS
from efficientbench.basics.errors import ConfigError
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.doctor.variant.cases import BASE, tiny_models
from efficientbench.export.architectures import architecture_of
from efficientbench.export.hugging_face import Model, write_model
from efficientbench.export.safetensors_folder import write_shards
from efficientbench.export.tensors import exported

MAMBA = [
    "model.pattern=[mamba2,own]",
    "model.kinds={mamba2: {attention: {kind: mamba2, value_dim: 12}, position: {kind: none}, qk_norm: false}}",
]
FREE = "model.kinds={free: {position: {kind: none}}}"
HARD = (
    "e\u0301 n\u0303 \u212b",
    "In 1999, 1234567 + 8 = 1234575.",
    "  \n\n a\tb \n",
    "it's WE'LL ½ 漢字\u3000\U0001f600",
    "",
)


@pytest.mark.usefixtures("single_rank", "without_fla")
@pytest.mark.parametrize(("name", "overrides", "tokenizer", "expected"), CASES.values(), ids=CASES)
def test_transformers_computes_the_same_logits(
    name: str, overrides: list[str], tokenizer: str, expected: str, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    config = config_of(name, *overrides)
    model = build(config)
    assert write_model(Model(config, checkpointed(weights_of(model)), tokenizers[tokenizer]), tmp_path) == []
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded).__name__ == expected
    assert not any(report.values()), report
    multiplied = config.model.embedding_multiplier != 1 and expected != "GraniteSWAForCausalLM"
    shared = config.model.tied and not multiplied and expected != "KimiLinearForCausalLM"
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == shared
    assert loaded.config.vocab_size == len(loaded.lm_head.weight) == 301
    tokens = text(config, config.training.seq_len)
    assert relative_error(loaded(tokens).logits, model(tokens)) < 1e-5
    # What releases before 5 read.
    content = json.loads((tmp_path / "config.json").read_text())
    assert content.get("rope_theta") == getattr(config.model.position, "base", None)
    share = "partial_rotary_factor"
    assert content.get(share) == (content.get("rope_parameters") or {}).get(share)


@pytest.mark.parametrize(("name", "tokenizer"), [("gqa_1.5B", "own"), ("gqa_1.5B", "qwen2"), ("mla_1.5B", "own")])
@pytest.mark.usefixtures("single_rank")
def test_the_tokenizer_gives_the_ids_of_training(
    name: str, tokenizer: str, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    config, ours = config_of(name), tokenizers[tokenizer]
    write_model(Model(config, checkpointed(weights_of(build(config))), ours), tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for string, ids in zip(HARD, ours.encode_batch(list(HARD)), strict=True):
        assert loaded(string).input_ids == ids
        assert loaded.decode(ids) == ours.backend.decode(ids, skip_special_tokens=False)
        assert tokenizer == "qwen2" or loaded.decode(ids) == string
    assert loaded.eos_token_id == GenerationConfig.from_pretrained(tmp_path).eos_token_id == ours.eod_id


@pytest.mark.usefixtures("single_rank")
def test_bf16_weights_stay_bf16_and_generate(tokenizers: dict[str, TextTokenizer], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = config_of("gqa_1.5B", "training.dtype=bf16")
    weights = weights_of(build(config))
    write_model(Model(config, checkpointed(weights), tokenizers["qwen2"]), tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.model.norm.weight, weights["decoder.final_layernorm.weight"])
    generated = loaded.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)
    assert generated.shape[1] <= 7


@pytest.mark.usefixtures("single_rank")
def test_large_models_are_written_in_several_files(tmp_path: Path) -> None:
    config = config_of("gqa_1.5B")
    weights = checkpointed(weights_of(build(config)))
    size = write_shards(exported(weights, config.model, "qwen2"), tmp_path, largest_bytes=50_000)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert [file.name for file in files] == [
        f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)
    ]
    assert len(files) > 2
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    held = {}
    for file in files:
        # Readable by whom any other new file is.
        assert file.stat().st_mode == (tmp_path / "model.safetensors.index.json").stat().st_mode
        with safe_open(file, "pt") as content:
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118, no mapping
        assert len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= 50_000
        assert {index["weight_map"][name] for name in tensors} == {file.name}
        held |= tensors
    assert held.keys() == index["weight_map"].keys()
    assert sum(tensor.nbytes for tensor in held.values()) == index["metadata"]["total_size"] == size
    assert torch.equal(held["lm_head.weight"], weights["embedding.word_embeddings.weight"][:301])


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("change", ["missing", "foreign", "short"])
def test_weights_of_another_model_are_refused(change: str, tmp_path: Path) -> None:
    config = config_of("gqa_1.5B")
    weights = checkpointed(weights_of(build(config)))
    norm = weights.pop("decoder.layers.1.input_layernorm.weight")
    if change == "foreign":
        weights["decoder.layers.1.something.weight"] = norm
    elif change == "short":
        weights["decoder.layers.1.input_layernorm.weight"] = norm[1:]
    with pytest.raises(ConfigError, match="the checkpoint holds"):
        write_shards(exported(weights, config.model, "qwen2"), tmp_path)


@pytest.mark.parametrize(
    ("name", "overrides", "reason"),
    [
        *(
            (BASE, [*tiny_models("attention", kind)[kind]], re.escape(variant.not_exported))
            for kind, variant in ATTENTION.items()
            if variant.exporter is None
        ),
        *(
            (BASE, [f"model.position.kind={kind}"], f"position.kind={kind}: .*{re.escape(variant.not_exported)}")
            for kind, variant in list(POSITIONS.items())[1:]
            if variant.place != "nothing"
        ),
        (
            "moe_1.5Bx8",
            ["model.position.kind=none"],
            "model.position.kind=none, model.moe.experts=.*SmolLM3ForCausalLM has no experts; "
            "Qwen2MoeForCausalLM has no layers without RoPE",
        ),
        ("moe_1.5Bx8", ["model.attention.kind=mla"], "DeepseekV2ForCausalLM does not scale"),
        (
            "none_1.5B",
            ["model.qk_norm=true"],
            "model.position.kind=none, model.qk_norm=true: .*: Qwen3ForCausalLM has no layers without RoPE; "
            "SmolLM3ForCausalLM has no norms on queries and keys",
        ),
        (
            "gqa_1.5B",
            [*WINDOWS, "model.kinds.swa.position.kind=none", "model.qk_norm=true"],
            "model.kinds.swa.qk_norm=true, model.kinds.swa.position.kind=none: .*: Qwen3ForCausalLM has no layers "
            "without RoPE; SmolLM3ForCausalLM",
        ),
        ("moe_1.5Bx8", ["model.attention.window=5"], "model.attention.window=5, .*Qwen2MoeForCausalLM has no windows"),
        ("nanochat_d12", ["model.attention.window=5"], "NanoChatForCausalLM has no windows"),
        ("gqa_1.5B", [*WINDOWS, "model.kinds.swa.attention.query_groups=1"], "differ in attention.query_groups"),
        ("gqa_1.5B", [*WINDOWS, "model.kinds.swa.ffn_hidden_size=64"], "differ in ffn_hidden_size"),
        ("gqa_1.5B", [*WINDOWS, "model.kinds.swa.position.base=500"], "GraniteSWAForCausalLM always has sinks"),
        ("gqa_1.5B", [*WINDOWS, "model.kinds.swa.attention.sinks=true"], "differ in attention.sinks"),
        ("gqa_1.5B", ["model.attention.sinks=true", "model.qk_norm=true"], "GraniteSWAForCausalLM has no norms on"),
        ("gqa_1.5B", ["model.attention.gate=true"], "model.attention.gate=True: .*LlamaForCausalLM has no output"),
        ("gqa_1.5B", ["model.position.share=0.5"], "model.position.share=0.5: .*LlamaForCausalLM has no RoPE's share"),
        ("gqa_1.5B", ["model.pattern=[own,part]", "model.kinds.part.position.share=0.5"], "differ in position.share"),
        (
            "gqa_1.5B",
            ["model.pattern=[gdn,own]"],
            "model.kinds.gdn.attention.kind=gdn: .*; Qwen3_5ForCausalLM always has norms on queries and keys and "
            "always has output gates and always has zero-centred norms",
        ),
        (
            "gqa_1.5B",
            [*MAMBA, "model.qk_norm=true"],
            "qk_norm=true, .*; BambaForCausalLM has no norms on queries and keys",
        ),
        (
            "gqa_1.5B",
            [*MAMBA, "model.norm_weights=zero_centred"],
            "norm_weights=zero_centred: .*BambaForCausalLM has no zero-centred norms",
        ),
        (
            "gqa_1.5B",
            [
                "model.pattern=[slim,own]",
                "model.kinds={slim: {attention: {kind: mamba2, inner_size: 64}, position: {kind: none}}}",
            ],
            "model.kinds.slim.attention.inner_size=64: .*no class of transformers has Mamba-2 with values as wide",
        ),
        (
            "gqa_1.5B",
            ["model.pattern=[kda,own]", "model.attention.kind=mla"],
            "KimiLinearForCausalLM has no latent attention with RoPE",
        ),
        (
            "gqa_1.5B",
            ["model.layers=3", "model.pattern=[kda,free,own]", "model.attention.kind=mla", FREE],
            "model.position.kind=rope: .*KimiLinearForCausalLM has no latent attention with RoPE",
        ),
        (
            "moe_1.5Bx8",
            ["model.pattern=[kda,own]", "model.attention.kind=mla", "model.position.kind=none"],
            "KimiLinearForCausalLM always has experts scored by sigmoids",
        ),
        (
            "kda_3to1_1.5B",
            ["model.layers=4", "model.kinds={kda: {attention: {kind: kda, value_dim: 24}, position: {kind: none}}}"],
            "model.kinds.kda.attention.value_dim=24: .*no class .* has Kimi Delta Attention with values not as wide",
        ),
        ("gqa_1.5B", ["model.norm_weights=zero_centred"], "norm_weights=zero_centred: .*LlamaForCausalLM has no zero"),
        ("gqa_1.5B", [*WINDOWS, "model.attention.window=7"], "differ in attention.window"),
        ("gqa_1.5B", ["model.pattern=[own,mla]"], "differ in attention.kind"),
        ("gqa_1.5B", ["model.pattern=[own,nsa]"], "model.kinds.nsa.attention.kind=nsa: .*has Native Sparse"),
        ("gqa_1.5B", ["model.activation=relu2"], "model.activation=relu2: .* NanoChat has this"),
        (
            "mla_1.5B",
            ["model.norm_epsilon=1e-5"],
            "norm_epsilon=1e-05: .*no class .* has norms of latents",
        ),
        ("mla_1.5B", ["model.embedding_norm=true"], "model.embedding_norm=true: .* NanoChat has this"),
        ("moe_1.5Bx8", ["model.logit_softcap=30"], r"model.logit_softcap=30\.0: .* NanoChat has this"),
        ("nanochat_d12", ["model.norm_weights=true"], "relu2, model.embedding_norm=true, model.logit_softcap=15"),
    ],
)
def test_a_model_without_a_counterpart_is_refused_with_the_reason(name: str, overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*; what can be exported"):
        architecture_of(tiny(name, *overrides).model)
