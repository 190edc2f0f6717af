"""Kernels that torch.compile makes, weight gradients and grouped matmuls, against plain torch in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from efficientbench.doctor.variant.model import FlopCounter
from efficientbench.model.kernels import grouped_mm as kernel
from efficientbench.model.kernels import norm, product, relu2, rope, swiglu, weight_gradient
from efficientbench.model.kernels.cross_entropy import LossKernel, linear_cross_entropy
from efficientbench.model.kernels.grouped_mm import RowGroups
from efficientbench.model.kernels.nsa import gate

Function = Callable[..., torch.Tensor]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    assert torch.empty(1, device=name).device.type == name
    return name


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
FUSED = (pytest.param("compiled", marks=pytest.mark.proof), "uncompiled")
"""The compiler takes seconds for each part: the default set runs the same formulas without it."""
EITHER = (*FUSED, "by torch's own kernels")


@pytest.fixture
def fuse(request: pytest.FixtureRequest, device: str) -> Iterator[bool]:
    """Whether a part is fused; compiled on a GPU, and where the parameter says so."""
    with torch.compiler.set_stance("force_eager" if (device, request.param) == ("cpu", "uncompiled") else "default"):
        yield request.param != EITHER[-1]


@pytest.mark.parametrize("fuse", FUSED, indirect=True)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rms_norm_matches_torch(device: str, dtype: torch.dtype, fuse: bool) -> None:
    x, weight = torch.randn(7, 3, 48, device=device, dtype=dtype), torch.rand(48, device=device, dtype=dtype)
    agree(
        lambda x, w: norm.rms_norm(x, w, 1e-6, fuse),
        lambda x, w: F.rms_norm(x, (48,), w, 1e-6),
        [x, weight],
        TOLERANCE[dtype],
    )


@pytest.mark.parametrize("fuse", EITHER, indirect=True)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rms_norm_without_weights_matches_torch(device: str, dtype: torch.dtype, fuse: bool) -> None:
    x = torch.randn(7, 3, 48, device=device, dtype=dtype)
    agree(
        lambda x: norm.rms_norm(x, None, 1e-2, fuse), lambda x: F.rms_norm(x, (48,), None, 1e-2), [x], TOLERANCE[dtype]
    )


@pytest.mark.parametrize("fuse", FUSED, indirect=True)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rms_norm_of_a_sum_matches_torch(device: str, dtype: torch.dtype, fuse: bool) -> None:
    def formula(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        total = x + residual
        return torch.cat([total, F.rms_norm(total, (48,), weight, 1e-6)])

    x, residual = (torch.randn(7, 3, 48, device=device, dtype=dtype) for _ in range(2))
    weight = torch.rand(48, device=device, dtype=dtype)
    agree(lambda x, r, w: torch.cat(norm.sum_and_norm(x, r, w, 1e-6)), formula, [x, residual, weight], TOLERANCE[dtype])


@pytest.mark.parametrize("fuse", EITHER, indirect=True)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_relu2_matches_torch(device: str, dtype: torch.dtype, fuse: bool) -> None:
    x = torch.randn(7, 3, 95, device=device, dtype=dtype)
    agree(lambda x: relu2.relu2(x, fuse), lambda x: x.clamp(min=0) ** 2, [x], TOLERANCE[dtype])


@pytest.mark.parametrize("fuse", FUSED, indirect=True)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_swiglu_matches_torch(device: str, dtype: torch.dtype, fuse: bool) -> None:
    def formula(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    x = torch.randn(7, 3, 96, device=device, dtype=dtype)
    agree(lambda x: swiglu.swiglu(x, fuse), formula, [x], TOLERANCE[dtype])


@pytest.mark.parametrize("fuse", EITHER, indirect=True)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_gated_sum_of_branches_matches_torch(device: str, dtype: torch.dtype, fuse: bool) -> None:
    gates = torch.rand(3, 2, 7, 3, 1, device=device, dtype=dtype)
    branches = torch.randn(3, 2, 7, 3, 16, device=device, dtype=dtype)
    agree(
        lambda g, *b: gate.gated_sum(g, list(b), fuse),
        lambda g, *b: (g * torch.stack(b)).sum(dim=0),
        [gates, *branches],
        TOLERANCE[dtype],
    )


@pytest.mark.parametrize("fuse", FUSED, indirect=True)
@pytest.mark.parametrize("rotated", [16, 10])
def test_rotation_of_all_or_the_last_dimensions_matches_torch(device: str, rotated: int, fuse: bool) -> None:
    angles = torch.randn(7, 1, 1, rotated // 2, device=device)
    x = torch.randn(7, 3, 2, 16, device=device)

    def formula(x: torch.Tensor) -> torch.Tensor:
        first, second = x[..., 16 - rotated :].chunk(2, dim=-1)
        cos, sin = angles.double().cos(), angles.double().sin()
        return torch.cat([x[..., : 16 - rotated], first * cos - second * sin, second * cos + first * sin], dim=-1)

    agree(lambda x: rope.rotate(x, angles.cos(), angles.sin(), fuse), formula, [x], 1e-6)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("block_logits", [2**24, 5 * 131])
@pytest.mark.parametrize("fuse", EITHER, indirect=True)
@pytest.mark.usefixtures("single_rank")
def test_the_fused_loss_matches_torch(device: str, fuse: bool, block_logits: int, softcap: float | None) -> None:
    hidden, embedding = torch.randn(17, 24, device=device), torch.randn(140, 24, device=device)
    labels, weights = torch.randint(131, (17,), device=device), torch.rand(17, device=device)
    weights[3] = 0
    kernel = LossKernel(block_logits, fuse)

    def formula(hidden: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        logits = hidden @ embedding[:131].t()
        bounded = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return F.cross_entropy(bounded, labels, reduction="none") @ weights.to(hidden.dtype)

    agree(
        lambda h, e: linear_cross_entropy(h, e, 131, labels, weights, dist.group.WORLD, kernel, softcap),
        formula,
        [hidden, embedding],
        1e-6,
    )


@pytest.mark.parametrize("looked_up", [True, False])
@pytest.mark.parametrize("block_logits", [2**24, 5 * 131])
@pytest.mark.usefixtures("single_rank")
def test_the_fused_loss_accumulates_the_tables_gradient_in_the_forward_pass(
    device: str, block_logits: int, looked_up: bool
) -> None:
    """To what is in `main_grad`, in the forward pass, and the hidden states' gradient is that of the formula too."""
    hidden, table = torch.randn(17, 24, device=device), torch.randn(140, 24, device=device)
    labels, weights = torch.randint(131, (17,), device=device), torch.rand(17, device=device)
    leaves = [x.double().requires_grad_() for x in (hidden, table)]
    (F.cross_entropy(leaves[0] @ leaves[1][:131].t(), labels, reduction="none") @ weights.double()).backward()
    parameter = torch.nn.Parameter(table)
    before = torch.randn(140, 24, device=device)
    parameter.main_grad = before.clone()
    found = hidden.clone().requires_grad_()
    kernel = LossKernel(block_logits, gradient_is_one=True)
    loss = linear_cross_entropy(found, parameter, 131, labels, weights, dist.group.WORLD, kernel, None, looked_up)
    added = parameter.main_grad.double() - before
    loss.backward()
    for ours, leaf in ((added, leaves[1]), (found.grad, leaves[0])):
        assert float((ours.double() - leaf.grad).norm() / leaf.grad.norm()) < 1e-6
    # And nothing more in the backward pass, whose dummy tells Megatron that the table's own gradient is complete.
    assert torch.equal(parameter.main_grad.double() - before, added)
    assert (parameter.grad is None, getattr(parameter, "grad_added_to_main_grad", False)) == (looked_up, not looked_up)
    with torch.no_grad():
        linear_cross_entropy(found, parameter, 131, labels, weights, dist.group.WORLD, kernel, None, looked_up)
    assert torch.equal(parameter.main_grad.double() - before, added)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradients_are_accumulated(device: str, dtype: torch.dtype) -> None:
    left = torch.randn(33, weight_gradient.ROWS_AT_ONCE + 3, device=device, dtype=dtype)
    right = torch.randn(33, 5, device=device, dtype=dtype)
    total = torch.randn(left.shape[1], 5, device=device)
    wanted = total.double() + left.double().t() @ right.double()
    weight_gradient.add_product(total, left, right)
    # Where the product is a tensor of its own, it is rounded to its dtype.
    narrow = weight_gradient.name(device, dtype) == weight_gradient.NARROW
    assert float((total - wanted).norm() / wanted.norm()) < (5e-3 if narrow else 1e-6)


@pytest.mark.parametrize("asked", [True, False])
def test_onednn_is_used_only_where_it_is_requested(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(product, "by_onednn", lambda kind, device_type, dtype: asked)
    assert (weight_gradient.name("cpu", torch.float32) == weight_gradient.ONEDNN) is asked
    whole, weight = torch.randn(50, 90), torch.randn(40, 33)
    out, total = torch.empty(50, 40), torch.randn(33, 40)
    # Parts of a matrix, and matrices that are read by columns.
    bias = torch.randn(40)
    x, table, before = whole[:, 20:53], weight.t().contiguous().t(), total.double()
    with FlopCounter() as counter, profile(activities=[ProfilerActivity.CPU]) as profiled:
        product.linear(x, table, out=out)
        weight_gradient.add_product(total, x, out)
        biased = product.linear(x.view(5, 10, 33), weight, bias)
    assert any("mkldnn" in event.key for event in profiled.key_averages()) is asked
    assert counter.total == 3 * 2 * 50 * 33 * 40
    assert error(out, x.double() @ weight.double().t()) < 1e-6
    assert error(total, before + x.double().t() @ out.double()) < 1e-6
    assert error(biased, (x.double() @ weight.double().t() + bias.double()).view(5, 10, 40)) < 1e-6


def test_products_are_timed_once_and_the_times_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    folder = tmp_path / "cache"
    first = {kind: product.kept_or_measured(kind, 1, folder) for kind in (product.LINEAR, product.ADDED)}
    assert all(each.keys() == {product.BLAS, product.ONEDNN} and min(each.values()) > 0 for each in first.values())
    (tmp_path / "file").touch()
    assert product.kept_or_measured(product.LINEAR, 1, tmp_path / "file") == {}

    def timed_again(kind: str) -> None:
        raise AssertionError(f"{kind} is timed again")

    monkeypatch.setattr(product, "_times_s", timed_again)
    assert {kind: product.kept_or_measured(kind, 1, folder) for kind in first} == first
    with pytest.raises(AssertionError, match="timed again"):
        product.kept_or_measured(product.LINEAR, 2, folder)


@pytest.mark.parametrize(("onednn_s", "chosen"), [(0.5, True), (0.85, False), (2.0, False)])
def test_onednn_has_to_be_clearly_faster(onednn_s: float, chosen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    times_s = {product.BLAS: 1.0, product.ONEDNN: onednn_s}
    monkeypatch.setattr(product, "measured", lambda kind, threads: times_s)
    assert product.by_onednn(product.LINEAR, "cpu", torch.float32) is chosen
    assert not product.by_onednn(product.LINEAR, "cpu", torch.bfloat16)
    assert not product.by_onednn(product.LINEAR, "cuda", torch.float32)
    told = f"products: BLAS 1000.00 ms, oneDNN {onednn_s * 1e3:.2f} ms"
    assert product.reasons("cpu", torch.float32) == {"cross_entropy": told, "weight_gradient": told}


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


SIZES = {
    "ragged": [3, 1, 7, 2, 5],
    "some empty": [0, 5, 0, 0, 6, 0],
    "all rows in one": [0, 16, 0],
    "no rows": [0, 0, 0],
}
RELATIVE = {torch.float32: 1e-6, torch.bfloat16: 5e-3}


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference, relative to the expected one's; the difference's own where nothing is expected."""
    difference, size = (actual.double() - expected).norm(), expected.norm()
    return float(difference / size) if size > 0 else float(difference)


@pytest.mark.parametrize("rows", ["each its own", "one for all, as the gradient of a sum is"])
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("counted", ["on the host", "on the device"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("dtype", RELATIVE)
def test_all_three_products_equal_one_for_each_group(
    dtype: torch.dtype,
    sizes: list[int],
    counted: str,
    at_once: bool,
    rows: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not at_once:
        monkeypatch.setattr(kernel, "has_grouped_mm", lambda device_type: False)
    elif not kernel.multiplies_at_once(device, dtype):
        pytest.skip("torch has no such call here")
    torch.manual_seed(1)
    x = torch.randn(sum(sizes), 24, device=device, dtype=dtype)
    grad_out = torch.randn(sum(sizes), 16, device=device, dtype=dtype)
    if rows != "each its own":
        grad_out = grad_out[:1].expand(sum(sizes), 16)
    weight = torch.randn(len(sizes), 16, 24, device=device, dtype=dtype)
    gradient = torch.randn(len(sizes), 16, 24, device=device)
    there = gradient.double()
    groups = RowGroups(torch.tensor(sizes, device=device if counted == "on the device" else "cpu"), x.device)
    parts = list(zip(x.double().split(sizes), grad_out.double().split(sizes), weight.double(), strict=True))

    out = kernel.grouped_mm(x, weight.transpose(1, 2), groups)
    assert error(out, torch.cat([own @ w.t() for own, _, w in parts])) < RELATIVE[dtype]
    grad_x = kernel.grouped_mm(grad_out, weight, groups)
    assert error(grad_x, torch.cat([grad_rows @ w for _, grad_rows, w in parts])) < RELATIVE[dtype]

    kernel.accumulate_weight_gradient(x, grad_out, groups, gradient)
    for total, before, (own, grad_rows, _) in zip(gradient, there, parts, strict=True):
        if len(own):
            narrow = weight_gradient.name(device, dtype) == weight_gradient.NARROW
            assert error(total, before + grad_rows.t() @ own) < (RELATIVE[dtype] if narrow else 1e-6)
        else:
            assert torch.equal(total.double(), before)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_groups_end_where_the_next_begins(sizes: list[int], device: str) -> None:
    groups = RowGroups(torch.tensor(sizes, device=device), torch.device(device))
    assert groups.sizes == sizes
    assert groups.ends.tolist() == [sum(sizes[: index + 1]) for index in range(len(sizes))]
    assert groups.ends.dtype == torch.int32


@pytest.mark.gpu
def test_grouped_matmuls_do_not_synchronize_an_nvidia_gpu() -> None:
    if not kernel.multiplies_at_once("cuda", torch.bfloat16):
        pytest.skip("no Hopper or Blackwell GPU is here")
    from efficientbench.model.token_dispatch import permute

    tokens = torch.randn(64, 48, device="cuda", dtype=torch.bfloat16)
    probs = torch.rand(64, 8, device="cuda")
    chosen = torch.zeros_like(probs).scatter(1, probs.topk(2).indices, 1).bool()
    weight, gradient = torch.randn(8, 80, 48, device="cuda").bfloat16(), torch.zeros(8, 80, 48, device="cuda")
    # Tried once in a process, with its result looked at.
    weight_gradient.adds_wide("cuda", torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows, _, _ = permute(tokens, chosen, probs, 128)
        groups = RowGroups(chosen.sum(dim=0), rows.device)
        out = kernel.grouped_mm(rows, weight.transpose(1, 2), groups)
        kernel.accumulate_weight_gradient(rows, out, groups, gradient)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert gradient.isfinite().all()


@pytest.mark.parametrize("tokens", [1, 2, 8, 9])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_logits_of_a_few_tokens_match_torch(tokens: int, dtype: torch.dtype) -> None:
    hidden, table = torch.randn(1, tokens, 48, dtype=dtype), torch.randn(131, 48, dtype=dtype)
    agree(product.linear_of_few, lambda x, w: x @ w.t(), [hidden, table], TOLERANCE[dtype])
    bias = torch.randn(131, dtype=dtype)
    agree(product.linear_of_few, lambda x, w, b: x @ w.t() + b, [hidden, table, bias], TOLERANCE[dtype])
    assert product.linear_of_few(hidden, table).is_contiguous()
    several = torch.randn(48, 2, 3, dtype=dtype).permute(1, 2, 0)
    agree(product.linear_of_few, lambda x, w: x @ w.t(), [several, table], TOLERANCE[dtype])


@pytest.mark.parametrize("tokens", [1, 8, 9])
def test_a_rank_with_only_padding_of_the_table_has_no_logits(tokens: int) -> None:
    assert product.linear_of_few(torch.randn(1, tokens, 48), torch.empty(0, 48)).shape == (1, tokens, 0)
