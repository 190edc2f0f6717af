"""Matmuls of grouped rows against one product for each group in float64, on the CPU and on an NVIDIA GPU."""

from __future__ import annotations

import pytest
import torch

from efficientbench.model.kernels import grouped_mm as kernel
from efficientbench.model.kernels import weight_gradient
from efficientbench.model.kernels.grouped_mm import RowGroups

SIZES = {
    "ragged": [3, 1, 7, 2, 5],
    "some empty": [0, 5, 0, 0, 6, 0],
    "all rows in one": [0, 16, 0],
    "no rows": [0, 0, 0],
}
RELATIVE = {torch.float32: 1e-6, torch.bfloat16: 5e-3}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU is here")
    return str(request.param)


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference, relative to the expected one's; the difference's own where nothing is expected."""
    difference, size = (actual.double() - expected).norm(), expected.norm()
    return float(difference / size) if size > 0 else float(difference)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("counted", ["on the host", "on the device"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("dtype", RELATIVE)
def test_all_three_products_equal_one_for_each_group(
    dtype: torch.dtype, sizes: list[int], counted: str, at_once: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_once:
        monkeypatch.setattr(kernel, "has_grouped_mm", lambda device_type: False)
    elif not kernel.multiplies_at_once(device, dtype):
        pytest.skip("torch has no such call here")
    torch.manual_seed(1)
    x = torch.randn(sum(sizes), 24, device=device, dtype=dtype)
    grad_out = torch.randn(sum(sizes), 16, device=device, dtype=dtype)
    weight = torch.randn(len(sizes), 16, 24, device=device, dtype=dtype)
    gradient = torch.randn(len(sizes), 16, 24, device=device)
    there = gradient.double()
    groups = RowGroups(torch.tensor(sizes, device=device if counted == "on the device" else "cpu"), x.device)
    parts = list(zip(x.double().split(sizes), grad_out.double().split(sizes), weight.double(), strict=True))

    out = kernel.grouped_mm(x, weight.transpose(1, 2), groups)
    assert error(out, torch.cat([rows @ w.t() for rows, _, w in parts])) < RELATIVE[dtype]
    grad_x = kernel.grouped_mm(grad_out, weight, groups)
    assert error(grad_x, torch.cat([grad_rows @ w for _, grad_rows, w in parts])) < RELATIVE[dtype]

    kernel.accumulate_weight_gradient(x, grad_out, groups, gradient)
    for total, before, (rows, grad_rows, _) in zip(gradient, there, parts, strict=True):
        if len(rows):
            wide = weight_gradient.name(device, dtype) == weight_gradient.WIDE
            assert error(total, before + grad_rows.t() @ rows) < (1e-6 if wide else RELATIVE[dtype])
        else:
            assert torch.equal(total.double(), before)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_groups_end_where_the_next_begins(sizes: list[int], device: str) -> None:
    groups = RowGroups(torch.tensor(sizes, device=device), torch.device(device))
    assert groups.sizes == sizes
    assert groups.ends.tolist() == [sum(sizes[: index + 1]) for index in range(len(sizes))]
    assert groups.ends.dtype == torch.int32


@pytest.mark.gpu
def test_nothing_waits_for_an_nvidia_gpu() -> None:
    if not kernel.multiplies_at_once("cuda", torch.bfloat16) or not torch.cuda.is_available():
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
