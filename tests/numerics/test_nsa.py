"""Native Sparse Attention against a dense masked reference straight from its equations."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from oracles.nsa import renamed, same_weights
from oracles.oracle import build, gradients_beside, relative_error, weights_of
from support.configs import tiny
from support.releases import FLA_ON_CPU
from support.repository import ROOT
from torch.utils._python_dispatch import TorchDispatchMode

from efficientbench.architecture.nsa import NSAConfig
from efficientbench.doctor.variant.model import FlopCounter
from efficientbench.model.kernels.nsa.choose_blocks import Choice
from efficientbench.model.kernels.nsa.range_attention import range_attention
from efficientbench.model.kernels.nsa.reach import Reach
from efficientbench.model.kernels.nsa.selected_attention import selected_attention

pytestmark = pytest.mark.usefixtures("single_rank")

BLOCKS = {
    # Structure of the paper's, an eighth: l = 2d, l' = 2l.
    "paper's ratios": {
        "compress_block": 4, "compress_stride": 2, "select_block": 8, "select_count": 4, "window": 12,
    },
    "three overlapping keys": {
        "compress_block": 6, "compress_stride": 2, "select_block": 10, "select_count": 3, "window": 5,
    },
    "blocks of one size": {
        "compress_block": 4, "compress_stride": 4, "select_block": 4, "select_count": 5, "window": 1,
    },
}  # fmt: skip


def overrides(blocks: str, seq_len: int) -> list[str]:
    settings = [f"model.attention.{key}={value}" for key, value in BLOCKS[blocks].items()]
    return [*settings, f"training.seq_len={seq_len}", "model.init_std=0.2"]


@pytest.mark.parametrize("seq_len", [3, *(pytest.param(each, marks=pytest.mark.proof) for each in (8, 64)), 149])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_logits_loss_and_gradients_equal_the_equations(blocks: str, seq_len: int) -> None:
    config = tiny("nsa_1.5B", *overrides(blocks, seq_len))
    model = build(config)
    oracle = same_weights(weights_of(model), config.model)
    ours = gradients_beside(model, config, lambda tokens: oracle(tokens).logits)
    gradients = renamed(ours, config.model)
    for key, parameter in oracle.named_parameters():
        if parameter.grad is None or not parameter.grad.any():
            assert seq_len < config.model.attention.compress_block, key
            assert not gradients[key].any(), key
        else:
            assert relative_error(gradients[key], parameter.grad) < 1e-5, key


class Sizes(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **kwargs or {})
        for each in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(each, torch.Tensor):
                self.largest = max(self.largest, each.untyped_storage().nbytes() // each.element_size())
        return out


def branches_cost(sequence: int) -> tuple[int, int]:
    """Largest tensor, in elements, and FLOPs of the three branches of one head, forward and backward."""
    dim, nsa = 8, NSAConfig()
    compressed = (sequence - nsa.compress_block) // nsa.compress_stride + 1
    query = torch.randn(1, sequence, 1, dim, requires_grad=True)
    key, value = (torch.randn(1, sequence, dim, requires_grad=True) for _ in range(2))
    short_key, short_value = (torch.randn(1, compressed, dim, requires_grad=True) for _ in range(2))
    choice = Choice(nsa.select_block, nsa.select_count, nsa.compress_block, nsa.compress_stride)
    with FlopCounter() as flops, Sizes() as sizes:
        past = Reach(nsa.compress_block, nsa.compress_stride)
        out, chosen = range_attention(query, short_key, short_value, 1.0, past, choice)
        out = out + selected_attention(query, key, value, chosen, nsa.select_block, 1.0)
        out = out + range_attention(query, key, value, 1.0, Reach(width=nsa.window))[0]
        out.sum().backward()
    return sizes.largest, flops.total


@pytest.mark.proof
def test_cost_does_not_grow_with_the_square_of_the_sequence() -> None:
    (short_size, short_flops), (long_size, long_flops) = branches_cost(2048), branches_cost(8192)
    assert long_size < 8192**2 / 32
    assert math.log(long_size / short_size, 4) <= 1.01
    assert math.log(long_flops / short_flops, 4) < 1.25


@FLA_ON_CPU
def test_selected_branch_equals_flas() -> None:
    naive = pytest.importorskip("fla.ops.nsa.naive", reason="fla-core is not installed")
    torch.manual_seed(0)
    sequence, groups, group, dim = 86, 2, 3, 8
    query = torch.randn(1, sequence, groups * group, dim, requires_grad=True)
    key, value = (torch.randn(1, sequence, groups, dim, requires_grad=True) for _ in range(2))
    scores = torch.rand(1, sequence, groups, 6)
    own = torch.arange(sequence)[:, None] // 16
    number = torch.arange(6)
    scores.masked_fill_((number == own)[:, None], 2).masked_fill_((number > own)[:, None], -1)
    best, chosen = scores.topk(4)
    chosen.masked_fill_(best < 0, -1)

    expected = naive.naive_nsa_selection(query, key, value, chosen, block_size=16)
    out = selected_attention(
        query.view(1, sequence, groups, group, dim).transpose(1, 2).flatten(0, 1),
        *(each.transpose(1, 2).flatten(0, 1) for each in (key, value, chosen)),
        16,
        dim**-0.5,
    )
    out = out.unflatten(0, (1, groups)).transpose(1, 2).flatten(2, 3)
    assert relative_error(out, expected) < 1e-5
    grad = torch.randn_like(out)
    for actual, wanted in zip(
        *(torch.autograd.grad(each, (query, key, value), grad) for each in (out, expected)), strict=True
    ):
        assert relative_error(actual, wanted) < 1e-5


@pytest.mark.proof
def test_flas_kernel_in_tritons_interpreter() -> None:
    pytest.importorskip("fla.ops.nsa.naive", reason="fla-core is not installed")
    script = ROOT / "tests" / "oracles" / "fla_in_interpreter.py"
    found = subprocess.run([sys.executable, script, "nsa"], check=True, capture_output=True, text=True).stdout
    errors = [float(line) for line in found.split()]
    assert len(errors) == 4
    assert max(errors) < 1e-5
