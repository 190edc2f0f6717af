"""Every layout computes what a single rank computes: loss and gradient norm at each of 5 steps, every gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import torch
from support.cells import Outcome, assert_equals_single_rank, train
from support.configs import (
    ATTENTIONS,
    BACKBONE,
    ENCODINGS,
    EVERY_KEY,
    FINE,
    MODELS,
    PATTERN,
    SINKS,
    WINDOW,
    Models,
    chosen,
    conditioned,
    has_table,
    tiny,
    tiny_model,
)
from support.ranks import Ranks

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import ATTENTION
from efficientbench.config.combination_table import problems
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.doctor.variant.cases import BASE, LAYOUTS, overrides_of

STEPS = 5
RELATIVE = 1e-5
PARTS: dict[str, Mapping[str, object]] = {
    **LAYOUTS,
    "interleaved pipeline": {**LAYOUTS["interleaved pipeline"], "model.layers": 4},
    "expert parallel": {"parallel.ep": 2, "parallel.dp": 2},
    "experts, context parallel": {"parallel.ep": 2, "parallel.cp": 2},
    "plain optimizer": {"parallel.distributed_optimizer": False},
    "no overlap": {"parallel.overlap": False},
    "fused": {"kernels.fused": True},
    **{f"micro-batches of {size}": {"training.micro_batch_size": size} for size in (1, 2)},
}
"""Part of a layout → its keys; `a x b` has those of both."""
ALONE = [
    *("tensor parallel", "sequence parallel", "context parallel"),
    *("pipeline", "interleaved pipeline", "data parallel"),
]
TOGETHER = [
    "tensor parallel x pipeline",
    "context parallel x sequence parallel",
    "context parallel x interleaved pipeline",
    "context parallel x data parallel",
    "tensor parallel x data parallel",
    "pipeline x data parallel",
    "interleaved pipeline x data parallel",
    "data parallel x plain optimizer",
    "data parallel x no overlap",
]
RECOMPUTATION = ["selective recomputation", "full recomputation", "full recomputation x context parallel"]
OF_EXPERTS = [
    *("expert parallel", "expert parallel x plain optimizer", "expert parallel x no overlap"),
    *("experts, context parallel", "expert parallel x sequence parallel"),
]
OF_TABLES = [
    *("full recomputation", "context parallel x sequence parallel"),
    # A table that every stage holds: split over heads, and cut by the distributed optimizer.
    *("tensor parallel x pipeline", "pipeline x data parallel"),
]
# An output table of its own is on the last stage alone; the gradients of heads' norms are sums over tp ranks.
OF_EVERY_KEY = [
    *("tensor parallel", "sequence parallel", "pipeline", "tensor parallel x pipeline"),
    *("context parallel x interleaved pipeline", "pipeline x data parallel", "full recomputation"),
]
OF_MICRO_BATCHES = [
    f"{layout} x micro-batches of {size}"
    for layout in ("sequence parallel", "expert parallel", "context parallel", "pipeline")
    for size in (1, 2)
]
OVER_SEQUENCES, OVER_THE_GLOBAL_BATCH = "moe over sequences", "moe over the global batch"
ONE_GROUP = f"one group, {EVERY_KEY}"
SHARED_GROUP = f"{SINKS} of one group"
TWICE = f"{PATTERN}, twice"
ALL: Models = {
    **MODELS,
    # Two stages have both kinds.
    TWICE: (BASE, (*MODELS[PATTERN][1], "model.layers=4")),
    ONE_GROUP: (BASE, ("model.attention.query_groups=1", *BACKBONE)),
    SHARED_GROUP: (BASE, (*MODELS[SINKS][1], "model.attention.query_groups=1")),
    OVER_SEQUENCES: ("moe_1.5Bx8", ("model.moe.auxiliary_over=sequence", "model.moe.auxiliary_loss=0.1")),
    OVER_THE_GLOBAL_BATCH: ("moe_1.5Bx8", ("model.moe.auxiliary_over=global", "model.moe.auxiliary_loss=0.1")),
}


def configured(name: str, *overrides: str) -> RunConfig:
    run, words = ALL[name]
    return tiny(run, *words, *conditioned(name), *overrides)


def keys_of(layout: str) -> Mapping[str, object]:
    return {key: value for part in layout.split(" x ") for key, value in PARTS[part].items()}


def supported(names: Iterable[str], layouts: Iterable[str]) -> list[tuple[str, str]]:
    """Return every model with each of the layouts that it is not refused."""
    configs, wanted = {name: configured(name) for name in names}, list(layouts)
    return [(name, each) for name, config in configs.items() for each in wanted if not problems(config, keys_of(each))]


CELLS = [
    *supported(ATTENTIONS, [*ALONE, *TOGETHER, *RECOMPUTATION]),
    *supported(["moe"], [*ALONE, *TOGETHER, *RECOMPUTATION, *OF_EXPERTS]),
    # A single rank has micro-batches of 4.
    *supported([OVER_THE_GLOBAL_BATCH], [*OF_MICRO_BATCHES, "data parallel x micro-batches of 1"]),
    *supported([OVER_THE_GLOBAL_BATCH], ["full recomputation x experts, context parallel x micro-batches of 2"]),
    *supported([OVER_SEQUENCES], OF_MICRO_BATCHES[:4]),
    *supported([FINE], [*ALONE, *RECOMPUTATION, *OF_EXPERTS]),
    *supported(ENCODINGS, ALONE),
    *supported([TWICE, WINDOW, SINKS], [*ALONE, *RECOMPUTATION]),
    *supported(chosen(ENCODINGS, has_table), OF_TABLES),
    *((EVERY_KEY, layout) for layout in OF_EVERY_KEY),
    # Both ranks have the one key.
    (ONE_GROUP, "tensor parallel"),
    (SHARED_GROUP, "tensor parallel"),
    ("nanochat", "tensor parallel x pipeline"),
    ("gqa", "pipeline x data parallel x no overlap"),
    ("gqa", "interleaved pipeline x data parallel x no overlap"),
    ("gqa", "context parallel x data parallel x no overlap"),
]
# Compilers take their time.
FUSED_CELLS = [("mla", "fused x sequence parallel"), ("moe", "fused"), (EVERY_KEY, "fused")]


def quick(name: str) -> str:
    """Return the layout in which a model is always tried."""
    layout = "data parallel" if ", " in name else "sequence parallel"
    if name in ENCODINGS and configured(name).model.position_variant.place != "embedding":
        layout = "pipeline"
    return layout if (name, layout) in CELLS else "data parallel"


# Every layout of two ranks once, and every variant once.
QUICK = {
    *(("gqa", layout) for layout in (*ALONE, "selective recomputation") if layout != "data parallel"),
    ("gqa", "data parallel x plain optimizer"),
    *((name, quick(name)) for name in [*ATTENTIONS, *ENCODINGS]),
    ("moe", "expert parallel"),
    (FINE, "sequence parallel"),
    (OVER_THE_GLOBAL_BATCH, "sequence parallel x micro-batches of 2"),
    (EVERY_KEY, "tensor parallel"),
    (EVERY_KEY, "pipeline"),
    *((TWICE, layout) for layout in ("tensor parallel", "pipeline")),
    (WINDOW, "context parallel"),
    (SHARED_GROUP, "tensor parallel"),
}


def test_every_architecture_is_tested() -> None:
    def parts(model: ModelConfig) -> tuple[str, str, bool]:
        return model.attention.kind, model.position.kind, model.moe is not None

    tried = {parts(configured(name).model) for name, _ in CELLS}
    assert {parts(resolve(run.name).model) for run in load_matrix().runs} <= tried


@pytest.fixture(scope="session")
def single(ranks: Callable[[int], Ranks], corpus: Path) -> Callable[..., Outcome]:
    """`single(name, *overrides)`: a single rank's outcome for a variant."""

    @functools.cache
    def outcome(name: str, *overrides: str) -> Outcome:
        plain = "parallel.distributed_optimizer=false"
        config = configured(name, f"data.cache={corpus.parent}", plain, *overrides)
        return ranks(1).call(train, config, corpus, STEPS)[0]

    return outcome


@pytest.mark.parametrize(
    ("name", "layout"),
    [cell if cell in QUICK else pytest.param(*cell, marks=pytest.mark.proof) for cell in [*CELLS, *FUSED_CELLS]],
)
def test_layout_equals_single_rank(
    name: str, layout: str, ranks: Callable[[int], Ranks], single: Callable[..., Outcome], corpus: Path
) -> None:
    overrides = overrides_of(keys_of(layout))
    config = configured(name, f"data.cache={corpus.parent}", *overrides)
    outcomes = ranks(Layout.of(config, 1, oversubscribe=True).world_size).call(train, config, corpus, STEPS)
    expected = single(name, *(each for each in overrides if each.startswith("model.")))
    assert_equals_single_rank(outcomes, expected, config.model.vocab_size, RELATIVE)


@pytest.mark.proof
def test_over_each_micro_batch_its_size_changes_what_is_learned(single: Callable[..., Outcome]) -> None:
    strong = "model.moe.auxiliary_loss=0.1"
    larger, smaller = single("moe", strong), single("moe", strong, "training.micro_batch_size=1")
    assert larger.losses[0] == pytest.approx(smaller.losses[0], rel=RELATIVE)
    assert larger.norms[0] != pytest.approx(smaller.norms[0], rel=10 * RELATIVE)
    assert larger.auxiliary_losses[0] != pytest.approx(smaller.auxiliary_losses[0], rel=1e-2)


@pytest.mark.parametrize("name", [*ATTENTIONS, *ENCODINGS, "moe", "nanochat"])
def test_single_rank_learns(name: str, single: Callable[..., Outcome]) -> None:
    outcome = single(name, "training.epsilon=1e-8", "training.learning_rate=1e-2")
    assert outcome.losses[-1] < outcome.losses[0] - 0.1
    assert torch.isfinite(torch.tensor(outcome.norms)).all()


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", [kind for kind, variant in ATTENTION.items() if variant.places == {"nothing"}])
def test_a_recurrent_layer_learns_in_bf16_for_500_steps_without_a_skipped_one(
    kind: str, seed: int, ranks: Callable[[int], Ranks], corpus: Path
) -> None:
    """Over more than a chunk, with states that documents empty."""
    words = ("training.dtype=bf16", "training.seq_len=72", "data.attention_within_documents=true")
    batch = ("training.micro_batch_size=4", "training.global_batch_size=4", "training.steps=500")
    rates = ("training.learning_rate=3e-3", "training.epsilon=1e-8", f"training.seed={seed}")
    config = tiny_model(kind, f"data.cache={corpus.parent}", *words, *batch, *rates)
    [outcome] = ranks(1).call(train, config, corpus, 500)
    # Of a step that was skipped the norm is no number.
    assert torch.isfinite(torch.tensor([*outcome.losses, *outcome.norms])).all()
    assert len(outcome.losses) == 500
    first, last = (sum(outcome.losses[at : at + 50]) / 50 for at in (0, 450))
    assert last < first - 0.3
