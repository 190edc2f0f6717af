"""Sinks, gates, partial rotations, layers without positions: transformers' classes, and the formula in float64."""

from __future__ import annotations

import pytest
import torch
from oracles.agreement import OTHERS, PAIRS, agreement, agreement_with_gpt_oss, shown_by
from oracles.oracle import build, relative_error, text, weights_of
from oracles.plain_decoder import PlainDecoder
from support.configs import BASE, tiny

from efficientbench.config.schema import RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")

GATED = (
    "model.attention.gate=true",
    "model.attention.qkv_bias=false",
    "model.qk_norm=true",
    "model.position.share=0.5",
)
SINKS = (
    *("model.attention.sinks=true", "model.attention.qkv_bias=false", "model.layers=4"),
    *("model.pattern=[swa,swa,swa,full]", "model.kinds.swa.attention.window=5", "model.kinds.full.position.kind=none"),
)


def attending(*overrides: str) -> RunConfig:
    """A model whose attention is far from uniform, on an odd number of tokens."""
    return tiny(BASE, "model.init_std=0.2", "training.seq_len=23", *overrides)


QUICK = {
    ("windows with a base of their own, sinks", "formula"),
    ("windows, full layers without positions", "granite_swa"),
    ("gate, QK-norm, half of RoPE", "formula"),
}
OTHER_CODE = [(name, other) for name, (_, others) in PAIRS.items() for other in others]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        pytest.param(*pair, id=f"{pair[1]}: {pair[0]}", marks=() if pair in QUICK else pytest.mark.proof)
        for pair in OTHER_CODE
    ],
)
def test_logits_loss_and_gradients_equal_those_of_other_code(name: str, other: str) -> None:
    if OTHERS[other][1] == "transformers":
        pytest.importorskip(f"transformers.models.{other}")
    assert agreement(name, other).worst < 1e-5


def test_each_mechanism_is_held_against_two_others_at_least() -> None:
    assert {name: len(others) for name, others in shown_by().items() if len(others) < 2} == {}


@pytest.mark.parametrize("window", [None, 4])
def test_the_kernel_computes_gpt_oss_sinks(window: int | None) -> None:
    """Over more tokens than one block of queries has."""
    pytest.importorskip("transformers.models.gpt_oss")
    assert max(agreement_with_gpt_oss(window)) < 1e-5


def test_the_last_queries_of_a_sequence_are_computed_alone() -> None:
    """As context-parallel ranks have them, with windows that reach into other ranks' tokens."""
    from efficientbench.model.kernels.window_attention import window_attention

    generator, length = torch.Generator().manual_seed(3), 131
    query, key, value = (torch.randn(length, 2, heads, 8, generator=generator) for heads in (4, 2, 2))
    sinks = torch.randn(4, generator=generator)
    for window in (None, 4, 40, 200):
        whole = window_attention(query, key, value, 0.3, window, sinks)
        for queries in (1, 13, 40, 131):
            last = window_attention(query[-queries:], key, value, 0.3, window, sinks)
            assert relative_error(last, whole[-queries:]) < 1e-5


def test_each_key_changes_the_model() -> None:
    """The oracles see each of them: without it, the logits are others."""
    config = attending(*SINKS, *GATED)
    model, tokens = build(config).eval(), text(config, 23)
    weights = weights_of(model)
    with torch.no_grad():
        logits = model(tokens)
        assert relative_error(logits, PlainDecoder(weights, config.model)(tokens)) < 1e-5
        for change in (
            *("model.kinds.swa.attention.window=6", "model.kinds.full.attention.sinks=false"),
            *("model.kinds.full.position.kind=rope", "model.kinds.swa.position.share=1"),
        ):
            other = PlainDecoder(weights, attending(*SINKS, *GATED, change).model)
            assert relative_error(logits, other(tokens)) > 1e-3, change
