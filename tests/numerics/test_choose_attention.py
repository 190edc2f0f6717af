"""The choice of an attention kernel: by measurement among those that are right, with what it rests on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from efficientbench.config.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.model.kernels.causal_attention import KERNELS, causal_attention
from efficientbench.model.kernels.choose_attention import AttentionShape, choose, fastest, first_right

CPU = torch.device("cpu")
GROUPED = AttentionShape(300, 2, 4, 2, 16, 16, torch.float32)
LATENT = AttentionShape(96, 1, 4, 4, 24, 16, torch.float32)


@pytest.mark.parametrize("shape", [GROUPED, LATENT])
@pytest.mark.parametrize("name", ["flash", "math"])
def test_kernels_give_the_formula(name: str, shape: AttentionShape) -> None:
    query = torch.randn(shape.seq_len, shape.batch, shape.heads, shape.key_dim)
    key = torch.randn(shape.seq_len, shape.batch, shape.groups, shape.key_dim)
    value = torch.randn(shape.seq_len, shape.batch, shape.groups, shape.value_dim)
    found = KERNELS[name](query, key, value, 0.3)
    heads = [h // (shape.heads // shape.groups) for h in range(shape.heads)]
    scores = 0.3 * torch.einsum("sbhd,tbhd->bhst", query.double(), key.double()[:, :, heads])
    mask = torch.ones(shape.seq_len, shape.seq_len).tril().bool()
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    wanted = torch.einsum("bhst,tbhe->sbhe", weights, value.double()[:, :, heads]).flatten(2)
    assert torch.allclose(found.double(), wanted, atol=1e-5)


def test_the_fastest_is_taken_and_what_cannot_run_says_why() -> None:
    choice = fastest(["math", "flash", "cudnn", "flex", "te"], GROUPED, CPU)
    assert dict(choice.times_s).keys() == {"flash", "math"}
    assert choice.name == min(choice.times_s, key=lambda item: item[1])[0]
    assert choice.kernel is KERNELS[choice.name]
    refused = dict(choice.refused)
    assert refused.keys() == {"cudnn", "flex", "te"}
    assert refused["flex"] == "FlexAttention needs Triton and a GPU"
    assert "not: cudnn, flex, te" in choice.reasons


def test_without_measuring_the_first_that_is_right_is_taken() -> None:
    choice = first_right(["te", "math", "flash"], GROUPED, CPU)
    assert (choice.name, choice.kernel, choice.times_s) == ("math", KERNELS["math"], ())
    assert [name for name, _ in choice.refused] == ["te"]
    assert first_right(["te"], GROUPED, CPU).kernel is causal_attention


def test_a_kernel_that_deviates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_scale(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        return causal_attention(query, key, value, 1.1 * scale)

    monkeypatch.setitem(KERNELS, "flash", wrong_scale)
    choice = fastest(["flash", "math"], GROUPED, CPU)
    assert choice.name == "math"
    assert "deviates from the formula" in dict(choice.refused)["flash"]


class NoGradient(torch.autograd.Function):
    """Of a kernel whose backward pass gives no numbers for the keys."""

    @staticmethod
    def forward(ctx: Any, key: torch.Tensor) -> torch.Tensor:
        return key.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        return grad_outputs[0] * math.nan


def test_a_kernel_whose_gradient_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        return causal_attention(query, NoGradient.apply(key), value, scale)

    monkeypatch.setitem(KERNELS, "flash", broken)
    assert dict(fastest(["flash", "math"], GROUPED, CPU).refused) == {
        "flash": "it deviates from the formula by nan of its norm"
    }


@pytest.mark.parametrize("error", [ValueError("NYI: shape\nmore"), AssertionError(), ImportError("libfused.so")])
def test_a_library_that_fails_leaves_the_others(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object) -> torch.Tensor:
        raise error

    monkeypatch.setitem(KERNELS, "flash", failing)
    choice = fastest(["flash", "math"], GROUPED, CPU)
    assert choice.name == "math"
    assert dict(choice.refused)["flash"] in ("NYI: shape", "AssertionError", "libfused.so")


@pytest.mark.parametrize(("name", "tp"), [("mqa_1.5B", 2), ("gqa_1.5B", 4), ("gqa_1.5B", 1)])
def test_a_rank_of_many_has_a_key_value_head(name: str, tp: int) -> None:
    config = resolve(name, overrides=[f"parallel.tp={tp}"])
    shape = AttentionShape.of(config)
    assert shape is not None
    assert (shape.heads, shape.groups) == (12 // tp, 2 if tp == 1 else 1)


def test_without_a_choice_torch_decides() -> None:
    assert choose("auto", GROUPED, "cpu").kernel is causal_attention
    assert fastest(["cudnn"], GROUPED, CPU).kernel is causal_attention


def test_a_kernel_that_is_asked_for_must_serve() -> None:
    assert choose("math", LATENT, "cpu").kernel is KERNELS["math"]
    with pytest.raises(ConfigError, match="kernels.attention=te does not serve this run: Transformer Engine is not"):
        choose("te", GROUPED, "cpu")


@pytest.mark.gpu
def test_the_choice_on_a_gpu() -> None:
    choice = choose("auto", AttentionShape(2048, 1, 12, 2, 128, 128, torch.bfloat16), "cuda")
    assert choice.times_s
