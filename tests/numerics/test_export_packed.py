"""Exports in fewer bits: their packing by hand, compressed-tensors' reading of them, and the way back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.oracle import build, relative_error, text, weights_of
from oracles.quantized import dequantized
from safetensors.torch import load_file
from support.configs import tiny
from support.exported import CASES, TIED, checkpointed, config_of
from support.releases import TRANSFORMERS_5

from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import WIDTHS, Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.costs.quantization import disk_bytes
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.export.hugging_face import Model, write_model
from efficientbench.export.importing import read_model
from efficientbench.export.packed import Unpacked, check_packable, is_quantized, pack, read_settings, unpack
from efficientbench.export.tensors import imported

pytestmark = TRANSFORMERS_5
FORMS = [
    Quantization(weights="int8"),
    Quantization(weights="int4", group=4),
    Quantization(weights="int4", group=4, symmetric=False),
]
WIDENED = ("nanochat", "experts", "experts without bias")
NAMES = ("gqa, tied", "mla, compressed queries, widths of its own", "windows, two tables", *WIDENED)
QUICK = ((NAMES[0], FORMS[2]), (NAMES[1], FORMS[0]))
"""What is tried without `--all` too."""
EXPORTED = [
    pytest.param(name, form, id=f"{name}-{form.name}", marks=() if (name, form) in QUICK else pytest.mark.proof)
    for name in NAMES
    for form in FORMS
    if form.symmetric or "experts" not in name
]


def exported(
    name: str, quantization: Quantization, tokenizers: dict[str, TextTokenizer], folder: Path
) -> tuple[RunConfig, dict[str, torch.Tensor]]:
    """Export a tiny model; return its configuration and its weights, those of fewer bits as they are meant."""
    run, overrides, tokenizer, _ = CASES[name]
    config = config_of(run, *overrides)
    weights = weights_of(build(config))
    write_model(Model(config, checkpointed(weights), tokenizers[tokenizer], quantization), folder)
    bits, group = WIDTHS[quantization.weights], quantization.row_group
    for place, weight in weights.items():
        if is_quantized(place, config.model):
            # Experts lie in one weight [E, O, I].
            each = weight.view(-1, *weight.shape[-2:])
            rounded = [dequantized(part, bits, group, quantization.symmetric)[0] for part in each]
            weights[place] = torch.stack(rounded).view(weight.shape).float()
    return config, weights


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_lie_in_words_from_the_lowest_bits_on(bits: int) -> None:
    generator, half = np.random.default_rng(bits), 2 ** (bits - 1)
    codes = generator.integers(-half, half, (5, 13))
    words = pack(torch.from_numpy(codes), bits)
    assert words.dtype == torch.int32
    of_word = 32 // bits
    for row, packed in zip(codes.tolist(), words.tolist(), strict=True):
        whole = sum((code + half) << (bits * place) for place, code in enumerate(row))
        assert [word % 2**32 for word in packed] == [
            whole >> 32 * word & 2**32 - 1 for word in range(-(-13 // of_word))
        ]
    assert torch.equal(unpack(words, bits, 13), torch.from_numpy(codes).int())


@pytest.mark.parametrize(("name", "quantization"), EXPORTED)
@pytest.mark.usefixtures("single_rank")
def test_transformers_loads_the_bits_and_computes_with_the_rounded_weights(
    name: str, quantization: Quantization, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors", reason="it needs Python 3.11")
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    config, meant = exported(name, quantization, tokenizers, tmp_path)
    # transformers 5.23 cannot keep zero points packed, nor experts, which it joins, nor NanoChat's layers, whose class
    # reads their weight as it begins; these it has to widen at loading.
    widens = name in WIDENED or not quantization.symmetric
    widened = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if widens else {}
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True, **widened)
    assert not any(report.values()), report
    held, saved = loaded.state_dict(), load_file(tmp_path / "model.safetensors")
    for place, tensor in (Unpacked(saved, quantization) if widened else saved).items():
        # Experts are joined under other names.
        assert torch.equal(held[place], tensor) if place in held else "experts" in name, place
    model = build(config)
    model.load_state_dict(meant, strict=False)
    tokens = text(config, config.training.seq_len)
    with torch.no_grad():
        assert relative_error(loaded(tokens).logits, model(tokens)) < 1e-5


@pytest.mark.parametrize(("name", "quantization"), EXPORTED)
@pytest.mark.usefixtures("single_rank")
def test_an_import_has_the_rounded_values_in_full_width(
    name: str, quantization: Quantization, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    config, meant = exported(name, quantization, tokenizers, tmp_path)
    again, architecture, tensors, _ = read_model(tmp_path, "tiny")
    # The file's table holds the products with the factor of the embedding.
    embedding = "embedding.word_embeddings.weight"
    expected = checkpointed(meant, padding=0)
    for place, weight in imported(tensors, again.model, architecture):
        if place != embedding and place in expected:
            assert torch.equal(weight, expected[place]), place
    settings = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert read_settings(tmp_path, settings) == quantization
    assert "lm_head" in settings["ignore"]


@pytest.mark.parametrize("quantization", FORMS, ids=lambda each: each.name)
@pytest.mark.usefixtures("single_rank")
def test_an_export_has_the_bytes_of_the_formula(
    quantization: Quantization, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    config, _ = exported("gqa, tied", quantization, tokenizers, tmp_path)
    assert TIED in CASES["gqa, tied"][1]
    tensors = load_file(tmp_path / "model.safetensors")
    found = sum(tensor.nbytes for name, tensor in tensors.items() if not name.endswith("weight_shape"))
    assert found == disk_bytes(config.model, "fp32", quantization)


@pytest.mark.usefixtures("single_rank")
def test_scales_without_groups_are_refused(tokenizers: dict[str, TextTokenizer], tmp_path: Path) -> None:
    exported("gqa, tied", FORMS[0], tokenizers, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    stem = next(name for name in tensors if name.endswith("weight_packed")).removesuffix("_packed")
    unpacked = Unpacked(tensors | {f"{stem}_scale": tensors[f"{stem}_scale"][:, 0]}, FORMS[0])
    with pytest.raises(ConfigError, match="its scales and its shape do not fit together"):
        unpacked[stem]


@pytest.mark.parametrize(
    ("name", "quantization", "message"),
    [
        ("gqa_1.5B", Quantization(weights="fp8"), "--weights fp8: pack-quantized holds integers: export int8 or int4"),
        ("gqa_1.5B", Quantization(weights="int4"), r"quantization.group=128: .*linear_qkv.weight has 48 inputs, no"),
        ("moe_1.5Bx8", FORMS[2], "quantization.symmetric=false: transformers cannot read experts with offsets"),
    ],
)
def test_what_has_no_such_form_is_refused(name: str, quantization: Quantization, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_packable(tiny(name).model, quantization)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "gptq"}, "it is gptq, int, pack-quantized"),
        ({"format": "float-quantized"}, "compressed-tensors, float-quantized, int"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "it has kv_cache_scheme"),
        ({"config_groups": {}}, "not enough values"),
    ],
)
@pytest.mark.usefixtures("single_rank")
def test_quantizations_that_are_not_read_are_refused_by_key(
    changes: dict[str, object], message: str, tokenizers: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    exported("gqa, tied", FORMS[0], tokenizers, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    with pytest.raises(ConfigError, match=message):
        read_settings(tmp_path / "config.json", settings | changes)
    layers = settings["config_groups"]["group_0"]
    for key, value in (("actorder", "group"), ("num_bits", 3)):
        wrong = {"group_0": layers | {"weights": layers["weights"] | {key: value}}}
        with pytest.raises(ConfigError, match=r"quantization_config: its weights are quantized"):
            read_settings(tmp_path / "config.json", settings | {"config_groups": wrong})
