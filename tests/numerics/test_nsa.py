"""Native Sparse Attention against a dense masked reference straight from its equations."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.configs import tiny
from support.nsa import eager_range_attention, eager_selected_attention, qwen2_with_nsa, to_qwen2_with_nsa
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from efficientbench import cost
from efficientbench.config.load import resolve
from efficientbench.config.schema import NSAConfig
from efficientbench.model.kernels.nsa_choice import Choice
from efficientbench.model.kernels.nsa_range import Reach, range_attention
from efficientbench.model.kernels.nsa_selection import selected_attention

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


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def overrides(blocks: str, seq_len: int) -> list[str]:
    settings = [f"model.attention.{key}={value}" for key, value in BLOCKS[blocks].items()]
    return [*settings, f"training.seq_len={seq_len}", "model.init_std=0.2"]


@pytest.mark.parametrize("seq_len", [3, 8, 64, 301])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_logits_loss_and_gradients_equal_the_equations(blocks: str, seq_len: int) -> None:
    from efficientbench.model.gpt import build_stage
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.optimizer import wrap_data_parallel

    config = tiny("nsa_1.5B", *overrides(blocks, seq_len))
    model = build_stage(config, torch.device("cpu"))
    parameters = global_parameters(model)
    generator = torch.Generator().manual_seed(1)
    for parameter in parameters.values():
        if parameter.dim() == 1:  # norms of one and biases of zero would hide mistakes
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    oracle = qwen2_with_nsa({key: parameter.detach().clone() for key, parameter in parameters.items()}, config.model)
    sequence = torch.randint(config.model.vocab_size, (2, seq_len + 1), generator=generator)
    tokens, labels = sequence[:, :-1], sequence[:, 1:]

    expected = oracle(tokens).logits
    expected_loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    expected_loss.backward()
    wrapped = wrap_data_parallel(model, config)
    logits = wrapped(tokens)
    loss = wrapped(tokens, labels, torch.ones_like(labels))
    loss.backward()

    assert relative_error(logits, expected) < 1e-5
    assert relative_error(loss, expected_loss) < 1e-5
    gradients = to_qwen2_with_nsa({key: parameter.main_grad for key, parameter in parameters.items()}, config.model)
    for key, parameter in oracle.named_parameters():
        if parameter.grad is None or not parameter.grad.any():
            assert seq_len < config.model.attention.compress_block, key
            assert not gradients[key].any(), key
        else:
            assert relative_error(gradients[key], parameter.grad) < 1e-5, key


@pytest.mark.parametrize("changed", [1, 20, 63])
def test_a_token_changes_no_earlier_logit(changed: int) -> None:
    from efficientbench.model.gpt import build_stage

    config = tiny("nsa_1.5B", "model.init_std=0.2")
    model = build_stage(config, torch.device("cpu"))
    tokens = torch.randint(config.model.vocab_size, (1, 64), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[0, changed] = (other[0, changed] + 1) % config.model.vocab_size
    before, after = model(tokens), model(other)
    assert relative_error(after[:, :changed], before[:, :changed]) < 1e-6
    assert relative_error(after[:, changed:], before[:, changed:]) > 1e-2


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
    with FlopCounterMode(display=False) as flops, Sizes() as sizes:
        past = Reach(nsa.compress_block, nsa.compress_stride)
        out, chosen = range_attention(query, short_key, short_value, 1.0, past, choice)
        out = out + selected_attention(query, key, value, chosen, nsa.select_block, 1.0)
        out = out + range_attention(query, key, value, 1.0, Reach(width=nsa.window))[0]
        out.sum().backward()
    return sizes.largest, flops.get_total_flops()


def test_cost_does_not_grow_with_the_square_of_the_sequence() -> None:
    (short_size, short_flops), (long_size, long_flops) = branches_cost(2048), branches_cost(8192)
    assert long_size < 8192**2 / 32
    assert math.log(long_size / short_size, 4) <= 1.01
    assert math.log(long_flops / short_flops, 4) < 1.25


def test_selected_branch_equals_flas() -> None:
    naive = pytest.importorskip("fla.ops.nsa.naive", reason="fla-core is not installed")
    torch.manual_seed(0)
    sequence, groups, group, dim = 150, 2, 3, 8
    query = torch.randn(1, sequence, groups * group, dim, requires_grad=True)
    key, value = (torch.randn(1, sequence, groups, dim, requires_grad=True) for _ in range(2))
    scores = torch.rand(1, sequence, groups, 10)
    own = torch.arange(sequence)[:, None] // 16
    number = torch.arange(10)
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


def test_flas_kernel_in_tritons_interpreter() -> None:
    pytest.importorskip("fla.ops.nsa.naive", reason="fla-core is not installed")
    script = Path(__file__).resolve().parents[1] / "support" / "fla_in_interpreter.py"
    found = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout
    errors = [float(line) for line in found.split()]
    assert len(errors) == 4
    assert max(errors) < 1e-5


def test_flops_equal_those_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from efficientbench.model.attention import nsa
    from efficientbench.model.gpt import build_stage

    config = tiny("nsa_1.5B", "model.head_dim=16", "training.seq_len=128")
    model = build_stage(config, torch.device("cpu"))
    monkeypatch.setattr(nsa, "range_attention", eager_range_attention)
    monkeypatch.setattr(nsa, "selected_attention", eager_selected_attention)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 128, dtype=torch.long))
    flops = cost.flops_per_token(config.model, 128)
    assert 2 * 128 * flops.forward_full_square == counter.get_total_flops()
    assert flops.forward < flops.forward_full_square


@pytest.mark.parametrize("name", ["nsa_0.5B", "nsa_1.5B", "nsa_3B"])
def test_parameters_are_as_many_as_counted(name: str) -> None:
    from efficientbench.model.gpt import build_stage

    config = resolve(name, smoke=True)
    built = sum(parameter.numel() for parameter in build_stage(config, torch.device("cpu")).parameters())
    assert cost.parameters(config.model).total == built
