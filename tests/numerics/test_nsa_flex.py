"""The compressed and the window branch by FlexAttention, as torch runs it uncompiled, and the choice made at once."""

from __future__ import annotations

import pytest
import torch
from support.proofs import proofs_but
from torch.nn.attention import flex_attention as torchs

from efficientbench.model.kernels import flex
from efficientbench.model.kernels.nsa import choose_blocks, range_attention_flex
from efficientbench.model.kernels.nsa.choose_blocks import Choice, choose_at_once
from efficientbench.model.kernels.nsa.range_attention import RangeAttention
from efficientbench.model.kernels.nsa.reach import Reach

WINDOW, COMPRESSED = Reach(width=5), Reach(length=6, stride=2)
REACHES = {
    "window": WINDOW,
    "a window as wide as a block": Reach(width=128),
    "compressed": COMPRESSED,
    "compressed, apart": Reach(length=4, stride=4),
    "all in the past": Reach(),
}
BATCH, GROUP, DIM = 2, 3, 8


def seen(reach: Reach, sequence: int, keys: int) -> torch.Tensor:
    """[S, K], straight from the definition: the latest keys whose last token is no later than the query."""
    visible = torch.zeros(sequence, keys, dtype=torch.bool)
    for query in range(sequence):
        past = [key for key in range(keys) if key * reach.stride + reach.length - 1 <= query]
        visible[query, past if reach.width is None else past[-reach.width :]] = True
    return visible


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether they are equal but for float64's rounding; where no query sees a key, all is 0."""
    return torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def inputs(reach: Reach, sequence: int) -> list[torch.Tensor]:
    keys = max((sequence - reach.length) // reach.stride + 1, 1)
    generator = torch.Generator().manual_seed(3)
    shapes = [(BATCH, sequence, GROUP, DIM), (BATCH, keys, DIM), (BATCH, keys, DIM)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("sequence", proofs_but([3], [3, 37, 149]))
@pytest.mark.parametrize("reach", REACHES.values(), ids=REACHES)
def test_outputs_sums_and_gradients_equal_the_formula(
    reach: Reach, sequence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex, "compiled", lambda: torchs.flex_attention)
    monkeypatch.setattr(flex, "compiled_with_sums", lambda: flex.attend_with_sums)
    # torch refuses gradients on a CPU, though its uncompiled formula has them.
    monkeypatch.setattr(torchs, "_validate_device", lambda query, key, value: None)
    query, key, value = inputs(reach, sequence)
    mask = seen(reach, sequence, key.shape[1])[:, None]
    blind = ~mask.any(dim=-1, keepdim=True)
    scores = torch.einsum("nsgd,nkd->nsgk", query, key) * 0.3
    scores = scores.masked_fill(~mask, -torch.inf)
    expected = torch.einsum("nsgk,nkd->nsgd", scores.masked_fill(blind, 0).softmax(dim=-1), value)
    expected = expected.masked_fill(blind, 0)

    found, log_sums = range_attention_flex.range_attention_with_sums(query, key, value, 0.3, reach)
    assert torch.equal(found, range_attention_flex.range_attention(query, key, value, 0.3, reach))
    assert close(found, expected)
    sighted = ~blind[:, 0, 0]
    assert close(log_sums[:, sighted], scores.logsumexp(dim=-1)[:, sighted])
    assert not log_sums.requires_grad
    grad = torch.randn_like(expected)
    both = (torch.autograd.grad(each, (query, key, value), grad) for each in (found, expected))
    for actual, wanted in zip(*both, strict=True):
        assert close(actual, wanted)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("reach", [Reach(), Reach(width=5), Reach(width=5, offset=20)])
def test_sinks_have_the_output_and_gradients_of_the_blocks(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "compiled_with_sinks", lambda: flex.attend_with_sinks)
    monkeypatch.setattr(torchs, "_validate_device", lambda query, key, value: None)
    query, key, value = (each.detach() for each in inputs(reach, 149))
    query = query[:, reach.offset :]
    sinks = torch.randn(BATCH, GROUP, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    parts = [each.float().requires_grad_() for each in (query, key, value, sinks)]
    expected, _ = RangeAttention.apply(*parts[:3], 0.3, reach, None, parts[3])
    found = range_attention_flex.range_attention_with_sinks(*parts, 0.3, reach)
    grad = torch.randn_like(expected)
    both = (torch.autograd.grad(each, parts, grad) for each in (found, expected))
    assert torch.allclose(found, expected, atol=1e-5)
    for actual, wanted in zip(*both, strict=True):
        assert torch.allclose(actual, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "sequence", [1, 127, 128, 300, *(pytest.param(each, marks=pytest.mark.proof) for each in (1024, 1500))]
)
@pytest.mark.parametrize("reach", [*REACHES.values(), Reach(32, 16), Reach(width=512), Reach(width=200)])
def test_blocks_are_those_that_torch_finds(reach: Reach, sequence: int) -> None:
    keys = max((sequence - reach.length) // reach.stride + 1, 1)
    visible = seen(reach, sequence, keys)
    found = range_attention_flex.block_mask(reach, sequence, keys, "cpu")
    expected = torchs.create_block_mask(lambda b, h, i, j: visible[i, j], None, None, sequence, keys, device="cpu")
    assert found.shape == expected.shape
    for name in ("kv", "full_kv", "q", "full_q"):
        count, order = (getattr(expected, f"{name}_{part}") for part in ("num_blocks", "indices"))
        assert torch.equal(getattr(found, f"{name}_num_blocks"), count), name
        for row, wanted, total in zip(
            getattr(found, f"{name}_indices")[0, 0], order[0, 0], count[0, 0].tolist(), strict=True
        ):
            assert torch.equal(row[:total], wanted[:total]), name


CHOICES = {
    "paper's ratios": Choice(block=8, count=4, length=4, stride=2),
    "three overlapping keys": Choice(block=10, count=3, length=6, stride=2),
    "blocks of one size": Choice(block=4, count=5, length=4, stride=4),
}


@pytest.mark.parametrize("most_scores", [2**27, 1000])
@pytest.mark.parametrize("sequence", [3, 8, 149])
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_selecting_for_all_queries_at_once_equals_selecting_block_by_block(
    choice: Choice, sequence: int, most_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_blocks, "MOST_SCORES", most_scores)
    reach = Reach(choice.length, choice.stride)
    query, key, value = (each.detach() for each in inputs(reach, sequence))
    _, expected = RangeAttention.apply(query, key, value, 0.9, reach, choice, None)
    scores = torch.einsum("nsgd,nkd->nsgk", query, key) * 0.9
    log_sums = scores.masked_fill(~seen(reach, sequence, key.shape[1])[:, None], -torch.inf).logsumexp(dim=-1)
    found = choose_at_once(query, key, log_sums, 0.9, reach, choice, fuse=False)
    assert torch.equal(found.sort(dim=-1).values, expected.sort(dim=-1).values)


@pytest.mark.proof
def test_compiled_selection_chooses_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MOST_SCORES", "MOST_SCORES_COMPILED"):
        monkeypatch.setattr(choose_blocks, limit, 20_000)
    choice = CHOICES["paper's ratios"]
    reach = Reach(choice.length, choice.stride)
    query, key, _ = (each.detach().float() for each in inputs(reach, 149))
    scores = torch.einsum("nsgd,nkd->nsgk", query, key) * 0.9
    log_sums = scores.masked_fill(~seen(reach, 149, key.shape[1])[:, None], -torch.inf).logsumexp(dim=-1)
    both = [choose_at_once(query, key, log_sums, 0.9, reach, choice, fuse) for fuse in (False, True)]
    assert torch.equal(*(each.sort(dim=-1).values for each in both))
