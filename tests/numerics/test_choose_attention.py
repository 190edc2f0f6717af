"""The choice of an attention kernel: by measurement among those that are right, with what it rests on."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.model.kernels import choose_attention
from efficientbench.model.kernels.causal_attention import KERNELS, causal_attention
from efficientbench.model.kernels.choose_attention import AttentionShape, choose, fastest, fastest_kept, first_right

CPU = torch.device("cpu")
GROUPED = AttentionShape(300, 2, 4, 2, 16, 16, torch.float32)
LATENT = AttentionShape(96, 1, 4, 4, 24, 16, torch.float32)


@pytest.mark.parametrize("shape", [GROUPED, LATENT])
@pytest.mark.parametrize("name", ["flash", "math"])
def test_attention_kernels_match_the_formula(name: str, shape: AttentionShape) -> None:
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


def test_the_fastest_kernel_is_chosen_and_unusable_ones_have_a_reason() -> None:
    choice = fastest(["math", "flash", "cudnn", "flex", "te"], GROUPED, CPU)
    assert dict(choice.times_s).keys() == {"flash", "math"}
    assert choice.name == min(choice.times_s, key=lambda item: item[1])[0]
    assert choice.kernel is KERNELS[choice.name]
    refused = dict(choice.refused)
    assert refused.keys() == {"cudnn", "flex", "te"}
    assert refused["flex"] == "FlexAttention needs Triton and a GPU"
    assert "not: cudnn, flex, te" in choice.reasons


def test_the_first_correct_kernel_is_chosen_without_measuring() -> None:
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


def test_a_kernel_with_a_nan_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        return causal_attention(query, NoGradient.apply(key), value, scale)

    monkeypatch.setitem(KERNELS, "flash", broken)
    assert dict(fastest(["flash", "math"], GROUPED, CPU).refused) == {
        "flash": "it deviates from the formula by nan of its norm"
    }


@pytest.mark.parametrize("error", [ValueError("NYI: shape\nmore"), AssertionError(), ImportError("libfused.so")])
def test_a_failing_library_does_not_affect_other_kernels(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object) -> torch.Tensor:
        raise error

    monkeypatch.setitem(KERNELS, "flash", failing)
    choice = fastest(["flash", "math"], GROUPED, CPU)
    assert choice.name == "math"
    assert dict(choice.refused)["flash"] in ("NYI: shape", "AssertionError", "libfused.so")


@pytest.mark.parametrize(("name", "tp"), [("mqa_1.5B", 2), ("gqa_1.5B", 4), ("gqa_1.5B", 1)])
def test_each_tensor_parallel_rank_has_a_key_value_head(name: str, tp: int) -> None:
    config = resolve(name, overrides=[f"parallel.tp={tp}"])
    shape = AttentionShape.of(config)
    assert shape is not None
    assert (shape.heads, shape.groups) == (12 // tp, 2 if tp == 1 else 1)


def test_torch_decides_without_a_choice() -> None:
    assert choose("auto", GROUPED, "cpu", Path()).kernel is causal_attention
    assert fastest(["cudnn"], GROUPED, CPU).kernel is causal_attention


def test_a_requested_kernel_that_is_unusable_is_refused() -> None:
    assert choose("math", LATENT, "cpu", Path()).kernel is KERNELS["math"]
    with pytest.raises(ConfigError, match="kernels.attention=te does not serve this run: Transformer Engine is not"):
        choose("te", GROUPED, "cpu", Path())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no kernel be timed, which takes a second."""
    monkeypatch.setattr(choose_attention, "_time_s", lambda kernel, *_: 2.0 if kernel is KERNELS["math"] else 1.0)


def not_measured(*arguments: object) -> float:
    raise AssertionError("measured again")


def test_a_later_run_uses_the_stored_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["math", "flash", "cudnn"]
    first = fastest_kept(names, GROUPED, CPU, tmp_path / "data")
    (file,) = (tmp_path / "data").iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(choose_attention, "_time_s", not_measured)
        again = fastest_kept(names, GROUPED, CPU, tmp_path / "data")
    assert (again.name, again.kernel, again.times_s, again.refused) == (
        first.name,
        first.kernel,
        first.times_s,
        first.refused,
    )
    assert (first.kept, again.kept) == (False, True)
    assert f"forward and backward, of an earlier run: {first.name} " in again.reasons
    # Another shape, other kernels and another torch are measured.
    fastest_kept(names, LATENT, CPU, tmp_path / "data")
    fastest_kept(names[:2], GROUPED, CPU, tmp_path / "data")
    monkeypatch.setattr(torch, "__version__", "1.0")
    assert not fastest_kept(names, GROUPED, CPU, tmp_path / "data").kept
    assert len(list((tmp_path / "data").iterdir())) == 4


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"", "it holds no kernels' times"),
        (None, b'{"times_s": [["math", 1.0', "it holds no kernels' times"),
        (None, b"[1, 2]", "it holds no kernels' times"),
        ("conditions", {"torch": "1.0"}, "its times are of other kernels or conditions"),
        ("times_s", [], "or are none"),
        ("times_s", [["flex", 1e-3]], "its times are of other kernels"),
        ("times_s", [["flash", 2.0], ["math", 1.0]], "its times are of other kernels"),
        ("times_s", [["flash", -1.0]], "its times are of other kernels"),
    ],
)
@pytest.mark.usefixtures("at_once")
def test_a_damaged_or_foreign_file_of_times_is_ignored_with_a_message(
    key: str | None, value: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fastest_kept(["flash", "math"], GROUPED, CPU, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(value if key is None else json.dumps(json.loads(file.read_bytes()) | {key: value}).encode())
    with caplog.at_level(logging.WARNING):
        assert not fastest_kept(["flash", "math"], GROUPED, CPU, tmp_path).kept
    (line,) = caplog.messages
    assert line.startswith(f"{file} is ignored: ")
    assert reason in line
    # And it is mended.
    assert fastest_kept(["flash", "math"], GROUPED, CPU, tmp_path).kept


@pytest.mark.usefixtures("at_once")
def test_a_stored_kernel_that_has_become_wrong_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastest_kept(["flash", "math"], GROUPED, CPU, tmp_path).name == "flash"
    wrong = lambda query, key, value, scale: causal_attention(query, key, value, 2 * scale)  # noqa: E731
    monkeypatch.setitem(KERNELS, "flash", wrong)
    assert fastest_kept(["flash", "math"], GROUPED, CPU, tmp_path).name == "math"


@pytest.mark.usefixtures("at_once")
def test_a_kernel_is_chosen_without_a_writable_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert not fastest_kept(["flash", "math"], GROUPED, CPU, tmp_path / "file").kept
    assert caplog.messages[-1].startswith("kernels' times are not kept: ")


@pytest.mark.gpu
def test_a_kernel_is_chosen_on_a_gpu(tmp_path: Path) -> None:
    choice = choose("auto", AttentionShape(2048, 1, 12, 2, 128, 128, torch.bfloat16), "cuda", tmp_path)
    assert choice.times_s


def test_a_single_key_needs_no_cudnn() -> None:
    """A document may have one token, which cuDNN does not take; on a CPU there is no cuDNN at all."""
    query, key, value = (torch.randn(1, 2, heads, 8) for heads in (4, 2, 2))
    expected = KERNELS["math"](query, key, value, 0.5)
    assert torch.allclose(KERNELS["cudnn"](query, key, value, 0.5), expected, atol=1e-6)
