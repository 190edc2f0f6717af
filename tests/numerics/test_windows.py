"""Sliding windows, alone and in patterns: other code on the same weights, the formula, and the ring of decoding."""

from __future__ import annotations

import math

import pytest
import torch
from oracles.oracle import build, relative_error, text, weights_of
from support.configs import BASE, tiny, tiny_model

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import cache_bytes, flops_per_token, keys_read_per_query
from efficientbench.planning.plan import hidden

pytestmark = pytest.mark.usefixtures("single_rank")

WINDOW = 5


def hybrid(*overrides: str) -> RunConfig:
    """Windows in three layers of four, no positions in the fourth."""
    return tiny(
        BASE,
        *("model.layers=4", "model.pattern=[swa,swa,swa,full]", "model.attention.qkv_bias=false"),
        *(f"model.kinds.swa.attention.window={WINDOW}", "model.kinds.full.position.kind=none"),
        *("model.init_std=0.2", "training.seq_len=23", *overrides),
    )


@pytest.mark.parametrize("change", ["model.kinds.swa.attention.window=6", "model.kinds.full.position.kind=rope"])
def test_granite_swa_tells_another_window_and_other_positions(change: str) -> None:
    """A window off by one, and positions in the layers that have none, are each seen."""
    pytest.importorskip("transformers.models.granite_swa")
    from oracles.granite_swa import same_weights

    model = build(hybrid(change)).eval()
    oracle, tokens = same_weights(weights_of(model), hybrid().model), text(hybrid(), 23)
    with torch.no_grad():
        assert relative_error(model(tokens), oracle(tokens).logits) > 1e-3


@pytest.mark.parametrize(("sequence", "window"), [(1, 1), (7, 1), (33, 4), (131, 40), (9, 12)])
def test_the_kernel_computes_the_formula(sequence: int, window: int) -> None:
    from efficientbench.model.kernels.window_attention import window_attention

    generator = torch.Generator().manual_seed(3)
    shapes = ((sequence, 2, 4, 8), (sequence, 2, 2, 8), (sequence, 2, 2, 8), (sequence, 2, 32))
    query, key, value, gradient = (torch.randn(shape, generator=generator).double() for shape in shapes)
    inputs = [each.float().requires_grad_() for each in (query, key, value)]
    out = window_attention(*inputs, 0.3, window)
    out.backward(gradient.float())

    exact = [each.requires_grad_() for each in (query, key, value)]
    scores = torch.einsum("sbhd,tbhd->bhst", exact[0], exact[1].repeat_interleave(2, dim=2)) * 0.3
    distance = torch.arange(sequence)[:, None] - torch.arange(sequence)
    weights = scores.masked_fill((distance < 0) | (distance >= window), -math.inf).softmax(dim=-1)
    expected = torch.einsum("bhst,tbhd->sbhd", weights, exact[2].repeat_interleave(2, dim=2)).flatten(2)
    expected.backward(gradient)
    for found, wanted in ((out, expected), *((mine.grad, its.grad) for mine, its in zip(inputs, exact, strict=True))):
        assert found is not None
        assert wanted is not None
        assert (found - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("parts", [(3, 1), (9, 1), (9, 4), (2, 11)])
def test_rows_of_unequal_length_continue_from_the_ring(parts: tuple[int, int]) -> None:
    """Rows begin with fewer and with more tokens than the ring holds, and go on by one token or by several."""
    from efficientbench.model.cache import Cache, Ring

    config, (first, chunk) = hybrid(), parts
    model, tokens = build(config).eval(), text(config, 23)
    lengths = torch.tensor([first, max(first - 2, 1)])
    cache, rows = Cache(model, 2, 23), torch.arange(2)
    assert cache.bytes == 2 * cache_bytes(config.model, 23, "fp32")
    assert [isinstance(state, Ring) for state in cache.states] == [True, True, True, False]
    with torch.no_grad():
        whole = model(tokens)
    with torch.no_grad(), cache.bound():
        cache.counts.copy_(lengths)
        model(tokens[:, :first])
        cache.advance()
        while int(cache.lengths.max()) + chunk <= 23:
            places = cache.lengths[:, None] + torch.arange(chunk)
            cache.counts.fill_(chunk)
            logits = model(tokens[rows[:, None], places])
            assert relative_error(logits, whole[rows[:, None], places]) < 1e-5
            cache.advance()


def test_a_window_counts_what_it_reads() -> None:
    config = tiny_model("window", "training.seq_len=12")
    seen = [min(query + 1, WINDOW) for query in range(12)]
    assert keys_read_per_query(config.model, 12) == sum(seen) / 12
    full = tiny_model("gqa", "training.seq_len=12").model
    score = 4 * full.heads * full.head_dim * full.layers
    linear = flops_per_token(full, 12).forward - score * 6
    assert flops_per_token(config.model, 12).forward == linear + score * sum(seen) // 12
    assert keys_read_per_query(config.model, WINDOW) == keys_read_per_query(full, WINDOW)


def test_the_cache_of_published_patterns_has_the_bytes_of_their_windows() -> None:
    """The 1.5B shape in bf16 at 32,768 tokens, with all layers full and with every fourth and every sixth full."""
    every = {
        "own": (4096, 940),
        "swa,swa,swa,own": (4096, 323),
        "swa,swa,swa,swa,swa,own": (1024, 159),
    }
    for pattern, (window, megabytes) in every.items():
        kinds = [f"model.kinds.swa.attention.window={window}"] if "swa" in pattern else []
        model = resolve("gqa_1.5B", overrides=[f"model.pattern=[{pattern}]", *kinds]).model
        assert round(cache_bytes(model, 32_768, "bf16") / 1e6) == megabytes


def test_a_window_that_no_sequence_exceeds_is_told() -> None:
    assert hidden(hybrid()) is None
    assert "a window of 23 tokens holds all 23" in (hidden(hybrid("model.kinds.swa.attention.window=23")) or "")
