"""Tensor-parallel ranks decode what a single rank computes, and choose the same tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from oracles.oracle import relative_error, text
from support.configs import ATTENTIONS, ENCODINGS, PATTERN, SINKS, WINDOW, chosen, decodes, tiny_model
from support.decoding import decode, in_int8, with_rounded_parts
from support.ranks import Ranks

from efficientbench.config.combination_table import problems
from efficientbench.doctor.variant.cases import LAYOUTS

LENGTH = 64
FEW = [[23, *[1] * 20, 3, 3, 15]]
MANY = [[1] * LENGTH, [5, *[3] * 19, 2], [40, *[3] * 8], [LENGTH]]
"""Tokens that are computed first, and at a time after them, each way of computing a whole sequence."""


TP: dict[str, int] = {"tp": 2}
NAMES = [
    *chosen(ATTENTIONS, lambda config: decodes(config) and not problems(config, LAYOUTS["tensor parallel"])),
    *chosen(ENCODINGS, lambda config: config.model.position_variant.place == "scores"),
]
CELLS = [*((name, TP) for name in [*NAMES, WINDOW, SINKS, PATTERN, "moe"]), ("moe", {"ep": 2, "dp": 2})]
QUICK = [*((name, TP) for name in ("gqa", "mla")), ("moe", {"ep": 2, "dp": 2})]
"""Not proofs alone."""


@pytest.mark.parametrize("ways", [FEW, pytest.param(MANY, marks=pytest.mark.proof)], ids=["few", "many"])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(
            name, layout, marks=() if (name, layout) in QUICK else pytest.mark.proof, id=f"{name} {' '.join(layout)}"
        )
        for name, layout in CELLS
    ],
)
def test_two_ranks_decode_the_logits_of_one(
    name: str, layout: dict[str, int], ways: list[list[int]], ranks: Callable[[int], Ranks]
) -> None:
    config = tiny_model(name, "model.init_std=0.2", f"training.seq_len={LENGTH}")
    tokens = text(config, LENGTH)
    [alone] = ranks(1).call(decode, config, tokens, ways)
    assert all(relative_error(logits, alone.whole) < 1e-5 for logits in alone.parts)
    shared = config.model_copy(update={"parallel": config.parallel.model_copy(update=layout)})
    answers = ranks(2).call(decode, shared, tokens, ways)
    for answer in answers:
        for way, logits in zip(ways, answer.parts, strict=True):
            assert relative_error(logits, alone.whole) < 1e-5, f"{way[0]} tokens, then {way[1:2]} at a time"
        assert answer.cache_bytes == answer.formula_bytes
        assert answer.sampled == alone.sampled
    assert all(map(torch.equal, answers[0].parts, answers[1].parts))


def test_two_ranks_decode_in_int8_with_the_weights_that_each_has_rounded(ranks: Callable[[int], Ranks]) -> None:
    config = tiny_model("gqa", "model.init_std=0.2", f"training.seq_len={LENGTH}")
    tokens = text(config, LENGTH)
    [alone] = ranks(1).call(decode, config, tokens, FEW, with_rounded_parts)
    shared = config.model_copy(update={"parallel": config.parallel.model_copy(update=TP)})
    for answer in ranks(2).call(decode, shared, tokens, FEW, in_int8):
        assert all(relative_error(logits, alone.whole) < 1e-5 for logits in answer.parts)
        assert answer.sampled == alone.sampled
    # What is rounded as a whole has other values.
    [whole] = ranks(1).call(decode, config, tokens, FEW, in_int8)
    assert relative_error(whole.whole, alone.whole) > 1e-4
