"""Attention within documents: every layout computes what a single rank computes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.cells import Outcome, assert_equals_single_rank, train, write_tokens
from support.configs import ATTENTIONS, SINKS, WINDOW, chosen, ends_with_documents, tiny_model
from support.ranks import Ranks

from efficientbench.architecture.registry import ATTENTION
from efficientbench.config.combination_table import PARTS, problems
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.doctor.variant.cases import overrides_of

STEPS = 3
LAYOUTS = {
    **{name: PARTS[name] for name in ("TP", "TP + SP", "PP", "DP", "CP")},
    "PP interleaved": {**PARTS["PP interleaved"], "model.layers": 4},
    "CP x PP interleaved": {**PARTS["PP interleaved"], **PARTS["CP"], "model.layers": 4},
    "CP x TP + SP": {**PARTS["TP + SP"], **PARTS["CP"]},
    "PP 4": {"parallel.pp": 4, "model.layers": 4},
    "CP x recompute": {**PARTS["CP"], **PARTS["recompute"]},
    "EP x CP": {"parallel.ep": 2, "parallel.cp": 2},
}
QUICK = {("gqa", "CP"), ("mla", "TP + SP")}
CELLS = [
    *(("gqa", layout) for layout in LAYOUTS if layout != "EP x CP"),
    *(
        (name, layout)
        for name in chosen(ATTENTIONS, ends_with_documents)
        if name in ATTENTION and name != "gqa"
        for layout in ("TP + SP", "PP", "CP", "CP x recompute")
        if not problems(tiny_model(name), LAYOUTS[layout])
    ),
    *((name, layout) for name in ("learnable_absolute", "absolute") for layout in ("TP + SP", "CP")),
    *(("relative", layout) for layout in ("TP", "PP")),
    ("moe", "EP x CP"),
    *((name, layout) for name in (WINDOW, SINKS) for layout in ("CP", "CP x TP + SP")),
]


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 1 to 50 tokens, each ended by token 0."""
    prefix, random = tmp_path_factory.mktemp("ended") / "documents", np.random.default_rng(0)
    lengths = random.integers(0, 50, 300)
    write_tokens(prefix, [np.append(random.zipf(1.5, length) % 130 + 1, 0) for length in lengths])
    return prefix


def configured(name: str, prefix: Path, *overrides: str) -> RunConfig:
    key = "data.attention_within_documents=true"
    return tiny_model(name, f"data.cache={prefix.parent}", key, *overrides)


@pytest.fixture(scope="session")
def single(ranks: Callable[[int], Ranks], ended: Path) -> Callable[..., Outcome]:
    @functools.cache
    def outcome(name: str, *overrides: str) -> Outcome:
        config = configured(name, ended, "parallel.distributed_optimizer=false", *overrides)
        return ranks(1).call(train, config, ended, STEPS)[0]

    return outcome


@pytest.mark.parametrize(
    ("name", "layout"), [cell if cell in QUICK else pytest.param(*cell, marks=pytest.mark.proof) for cell in CELLS]
)
def test_layout_equals_single_rank(
    name: str, layout: str, ranks: Callable[[int], Ranks], single: Callable[..., Outcome], ended: Path
) -> None:
    overrides = overrides_of(LAYOUTS[layout])
    config = configured(name, ended, *overrides)
    outcomes = ranks(Layout.of(config, 1, oversubscribe=True).world_size).call(train, config, ended, STEPS)
    expected = single(name, *(each for each in overrides if each.startswith("model.")))
    assert_equals_single_rank(outcomes, expected, config.model.vocab_size, 1e-5)
    counted = sum((outcome.document_lengths for outcome in outcomes), Counter())
    copies = len(outcomes) // Layout.of(config, 1, oversubscribe=True).dp
    assert counted == {length: copies * count for length, count in expected.document_lengths.items()}


def test_the_key_changes_training(ranks: Callable[[int], Ranks], single: Callable[..., Outcome], ended: Path) -> None:
    across = configured("gqa", ended, "parallel.distributed_optimizer=false", "data.attention_within_documents=false")
    without = ranks(1).call(train, across, ended, STEPS)[0]
    assert not without.document_lengths
    assert without.losses[0] != pytest.approx(single("gqa").losses[0], rel=1e-4)
