"""The selected branch as it is handed to the NPU's kernel, with the kernel's formula in its place."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from oracles.npu_kernels import NsaSelectAttention

from efficientbench.model.kernels import npu_fused
from efficientbench.model.kernels.nsa import selected_attention as nsa_selection
from efficientbench.model.kernels.nsa import selected_attention_npu as nsa_npu
from efficientbench.model.kernels.nsa.choose_blocks import SelectionShape

SEQUENCE = 1088
SHAPE = SelectionShape(block=64, count=16, head_dim=128, group=7, sequence=2048, half=True)


def choice(batch: int) -> torch.Tensor:
    """[N, S, 16]: the first and the two local blocks and others at random, -1 where there are no more."""
    own = torch.arange(SEQUENCE) // 64
    number = torch.arange(SEQUENCE // 64)
    scores = torch.rand(batch, SEQUENCE, len(number))
    local = (number == 0) | ((number <= own[:, None]) & (number > own[:, None] - 2))
    scores.masked_fill_(local, 2).masked_fill_(number > own[:, None], -1)
    best, chosen = scores.topk(16)
    return chosen.masked_fill(best < 0, -1)


@pytest.mark.proof
@pytest.mark.parametrize(("batch", "group", "dim"), [(2, 7, 64), (1, 6, 128)])
def test_past_and_own_block_together_are_the_selected_branch(
    batch: int, group: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", NsaSelectAttention(dtypes=(torch.float32,)).torch_npu())
    torch.manual_seed(0)
    query = torch.randn(batch, SEQUENCE, group, dim, requires_grad=True)
    key, value = (torch.randn(batch, SEQUENCE, dim, requires_grad=True) for _ in range(2))
    chosen = choice(batch)
    expected = nsa_selection.selected_attention(query, key, value, chosen, 64, dim**-0.5)
    out = nsa_npu.SelectedAttention.apply(query, key, value, chosen, dim**-0.5)
    assert (out - expected).abs().max() < 1e-5 * expected.abs().max()
    grad = torch.randn_like(out)
    for found, wanted in zip(
        *(torch.autograd.grad(each, (query, key, value), grad) for each in (out, expected)), strict=True
    ):
        assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()


@pytest.mark.proof
def test_the_kernel_gets_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", NsaSelectAttention().torch_npu())
    torch.manual_seed(0)
    query, key, value = torch.randn(1, SEQUENCE, 2, 64), torch.randn(1, SEQUENCE, 64), torch.randn(1, SEQUENCE, 64)
    chosen = choice(1)
    expected = nsa_selection.selected_attention(query, key, value, chosen, 64, 0.125)
    halves = [each.bfloat16().requires_grad_() for each in (query, key, value)]
    out = nsa_npu.SelectedAttention.apply(*halves, chosen, 0.125)
    assert out.dtype == torch.bfloat16
    assert (out.float() - expected).abs().max() < 0.02 * expected.abs().max()
    assert all(each.dtype == torch.bfloat16 for each in torch.autograd.grad(out.sum(), halves))


@pytest.fixture
def on_a2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsa_npu, "_has_kernel", lambda: True)


@pytest.mark.usefixtures("on_a2")
@pytest.mark.parametrize(
    "change",
    [
        {"block": 32},
        {"count": 8},
        {"head_dim": 192},
        {"group": 33},
        {"sequence": 960},
        {"sequence": 2080},
        {"half": False},
    ],
)
def test_shapes_beyond_its_limits_are_left_to_pytorch(change: dict[str, int]) -> None:
    assert nsa_npu.serves("npu", SHAPE)
    assert nsa_selection.kernel_name("npu", SHAPE) == nsa_npu.NAME
    assert not nsa_npu.serves("npu", replace(SHAPE, **change))
    assert nsa_selection.kernel_name("npu", replace(SHAPE, **change)) == nsa_selection.NAME


def test_other_devices_do_not_use_the_npu_kernel() -> None:
    assert not nsa_npu.serves("cpu", SHAPE)
    assert nsa_selection.kernel_name("cpu", SHAPE) == nsa_selection.NAME


@pytest.mark.parametrize(("family", "served"), [("A2", True), ("A3", False), ("910", False), (None, False)])
def test_undocumented_chips_do_not_use_the_npu_kernel(
    family: str | None, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", NsaSelectAttention().torch_npu())
    monkeypatch.setattr(npu_fused, "chip_family", lambda: family)
    monkeypatch.setattr(nsa_npu, "_has_kernel", nsa_npu._has_kernel.__wrapped__)
    assert nsa_npu.serves("npu", SHAPE) == served
