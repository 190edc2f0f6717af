"""The words that ask for weights of fewer bits, and what a device refuses of them."""

from __future__ import annotations

import re

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import Quantization, split_quantization
from efficientbench.devices.quantized import form_of


def test_keys_of_quantization_are_taken_out_of_the_arguments() -> None:
    words = ["device=cpu", "quantization.group=64", "quantization.symmetric=false"]
    found, others = split_quantization("int4", words)
    assert found == Quantization(weights="int4", group=64, symmetric=False)
    assert others == ["device=cpu"]
    assert split_quantization(None, others) == split_quantization("none", others) == (None, others)


def test_a_name_tells_widths_and_groups_apart() -> None:
    asked = (("int8", {}), ("int4", {}), ("int4", {"group": 32, "symmetric": False}), ("fp8", {}), ("fp16", {}))
    names = [Quantization.model_validate({"weights": width, **keys}).name for width, keys in asked]
    assert names == ["int8", "int4_g128", "int4_g32_asymmetric", "fp8", "fp16"]


@pytest.mark.parametrize(
    ("weights", "words", "message"),
    [
        (None, ["quantization.group=64"], "quantization.group=64: goes with --weights int8 or int4 or fp8"),
        ("int6", [], "--weights: there is no width 'int6': did you mean int8?"),
        ("int8", ["quantization.weights=int4"], "quantization.weights: --weights gives the width: int8"),
        ("none,int8", [], "--weights: 'none,int8' is a list, which only generate --measure takes: name one width"),
        ("int4", ["quantization.groups=64"], "quantization.groups: no such key; there are group, symmetric"),
        ("int4", ["quantization.group=0"], "quantization.group: "),
    ],
)
def test_wrong_words_are_refused_with_what_would_be_right(weights: str | None, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        split_quantization(weights, words)


@pytest.mark.parametrize(
    ("keys", "device", "dtype", "message"),
    [
        ({"weights": "int8", "group": 64}, "cpu", "fp32", "_weight_int8pack_mm, which takes one scale for each row"),
        ({"weights": "fp16", "group": 64}, "cpu", "bf16", "torch linear in fp16, which takes no scales"),
        ({"weights": "int4", "group": 48}, "cpu", "fp32", "takes groups of 32, 64, 128, 256"),
        ({"weights": "int8", "symmetric": False}, "cuda", "bf16", "which takes no offsets"),
        ({"weights": "int4"}, "cuda", "fp32", "computes in bf16, and the model is in fp32"),
        ({"weights": "fp8"}, "npu", "bf16", "torch_npu documents weights of int8 and int4"),
        ({"weights": "fp8"}, "cpu", "fp32", "a CPU has no products in fp8"),
    ],
)
def test_what_a_device_cannot_do_is_refused_by_name(
    keys: dict[str, object], device: str, dtype: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        form_of(Quantization.model_validate(keys), device, dtype, measured=True)


def test_fp8_on_a_cpu_is_for_quality_alone() -> None:
    assert form_of(Quantization(weights="fp8"), "cpu", "fp32").kernel.quality_only
