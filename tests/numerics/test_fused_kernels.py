"""Kernels that torch.compile makes, and weight gradients, against the same parts as torch runs them in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from efficientbench.model.kernels import norm, rope, swiglu, weight_gradient
from efficientbench.model.kernels.cross_entropy import LossKernel, linear_cross_entropy

Function = Callable[..., torch.Tensor]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU is here")
    return str(request.param)


def results(function: Function, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradient of every input that takes one, for a gradient of the output drawn anew."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    out = function(*leaves)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out.backward(grad.to(out.device, out.dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def agree(found: Function, formula: Function, inputs: list[torch.Tensor], relative: float) -> None:
    wanted = results(formula, *(x.double() if x.is_floating_point() else x for x in inputs))
    for a, b in zip(results(found, *inputs), wanted, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < relative


TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 5e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norm(device: str, dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 3, 48, device=device, dtype=dtype), torch.rand(48, device=device, dtype=dtype)
    agree(
        lambda x, w: norm.rms_norm(x, w, 1e-6, fuse=True),
        lambda x, w: F.rms_norm(x, (48,), w, 1e-6),
        [x, weight],
        TOLERANCE[dtype],
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_swiglu(device: str, dtype: torch.dtype) -> None:
    def formula(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    x = torch.randn(7, 3, 96, device=device, dtype=dtype)
    agree(lambda x: swiglu.swiglu(x, fuse=True), formula, [x], TOLERANCE[dtype])


@pytest.mark.parametrize("rotated", [16, 10])
def test_rotation_of_all_and_of_the_last_dimensions(device: str, rotated: int) -> None:
    angles = torch.randn(7, 1, 1, rotated // 2, device=device)
    x = torch.randn(7, 3, 2, 16, device=device)

    def formula(x: torch.Tensor) -> torch.Tensor:
        first, second = x[..., 16 - rotated :].chunk(2, dim=-1)
        cos, sin = angles.double().cos(), angles.double().sin()
        return torch.cat([x[..., : 16 - rotated], first * cos - second * sin, second * cos + first * sin], dim=-1)

    agree(lambda x: rope.rotate(x, angles.cos(), angles.sin(), fuse=True), formula, [x], 1e-6)


@pytest.mark.parametrize("block_logits", [2**24, 5 * 131])
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.usefixtures("single_rank")
def test_loss(device: str, fuse: bool, block_logits: int) -> None:
    hidden, embedding = torch.randn(17, 24, device=device), torch.randn(140, 24, device=device)
    labels, weights = torch.randint(131, (17,), device=device), torch.rand(17, device=device)
    weights[3] = 0
    kernel = LossKernel(block_logits, fuse)
    agree(
        lambda h, e: linear_cross_entropy(h, e, 131, labels, weights, dist.group.WORLD, kernel),
        lambda h, e: F.cross_entropy(h @ e[:131].t(), labels, reduction="none") @ weights.to(h.dtype),
        [hidden, embedding],
        1e-6,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradients_are_added_to_what_is_there(device: str, dtype: torch.dtype) -> None:
    left = torch.randn(33, weight_gradient.ROWS_AT_ONCE + 3, device=device, dtype=dtype)
    right = torch.randn(33, 5, device=device, dtype=dtype)
    total = torch.randn(left.shape[1], 5, device=device)
    wanted = total.double() + left.double().t() @ right.double()
    weight_gradient.add_product(total, left, right)
    # Where the product is a tensor of its own, it is rounded to its dtype.
    wide = weight_gradient.name(device, dtype) == weight_gradient.WIDE
    assert float((total - wanted).norm() / wanted.norm()) < (1e-6 if wide else 5e-3)


@pytest.mark.parametrize("widened", [True, False])
def test_a_cpu_without_products_in_bf16_adds_them_unrounded(widened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_gradient, "widens", lambda device_type, dtype: widened)
    assert (weight_gradient.name("cpu", torch.bfloat16) == weight_gradient.WIDENED) is widened
    left = torch.randn(weight_gradient.WIDENED_AT_ONCE + 3, 7, dtype=torch.bfloat16)
    right = torch.randn(len(left), 5, dtype=torch.bfloat16)
    total = torch.randn(7, 5)
    wanted = total.double() + left.double().t() @ right.double()
    weight_gradient.add_product(total, left, right)
    assert float((total - wanted).norm() / wanted.norm()) < (1e-6 if widened else 5e-3)
