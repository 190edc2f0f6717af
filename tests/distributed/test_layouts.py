"""Every layout computes what a single rank computes: loss and gradient norm at each of 5 steps, every gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.cells import Outcome, assert_equals_single_rank, train
from support.configs import BACKBONE, tiny
from support.ranks import Ranks

from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix

STEPS = 5
RELATIVE = 1e-5
LAYOUTS = {
    "TP 2": (2, ["parallel.tp=2"]),
    "TP 2 with SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "DP 2": (2, ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "DP 2 with distributed optimizer": (2, ["parallel.dp=2"]),
    "PP 2 interleaved": (2, ["parallel.pp=2", "parallel.vpp=2", "model.layers=4"]),
    "TP 2 x PP 2": (4, ["parallel.tp=2", "parallel.pp=2"]),
    "CP 2": (2, ["parallel.cp=2"]),
    "CP 2 x TP 2 with SP": (4, ["parallel.cp=2", "parallel.tp=2", "parallel.sp=true"]),
    "CP 2 x PP 2 interleaved": (4, ["parallel.cp=2", "parallel.pp=2", "parallel.vpp=2", "model.layers=4"]),
    "CP 2 x DP 2": (4, ["parallel.cp=2", "parallel.dp=2"]),
    "TP 2 x DP 2": (4, ["parallel.tp=2", "parallel.dp=2"]),
    "PP 2 x DP 2": (4, ["parallel.pp=2", "parallel.dp=2"]),
    "DP 2, no overlap": (2, ["parallel.dp=2", "parallel.overlap=false"]),
    "PP 2 interleaved x DP 2": (4, ["parallel.pp=2", "parallel.vpp=2", "parallel.dp=2", "model.layers=4"]),
}
RECOMPUTATION = {
    "selective recomputation": (1, ["training.recompute=selective"]),
    "full recomputation": (1, ["training.recompute=full"]),
    "full recomputation x CP 2": (2, ["training.recompute=full", "parallel.cp=2"]),
}
FUSED = {
    "fused": (1, ["kernels.fused=true"]),
    "fused, TP 2 with SP": (2, ["kernels.fused=true", "parallel.tp=2", "parallel.sp=true"]),
}
EXPERT_LAYOUTS = {
    "EP 2": (2, ["parallel.ep=2", "parallel.dp=2"]),
    "EP 2, plain optimizer": (2, ["parallel.ep=2", "parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "EP 2 x CP 2": (2, ["parallel.ep=2", "parallel.cp=2"]),
    "EP 2 x TP 2 with SP": (4, ["parallel.ep=2", "parallel.dp=2", "parallel.tp=2", "parallel.sp=true"]),
}
NO_OVERLAP = {
    f"{layout}, no overlap": (ranks, [*parallel, "parallel.overlap=false"])
    for layout, (ranks, parallel) in {**LAYOUTS, **EXPERT_LAYOUTS}.items()
}
BACKBONE_LAYOUTS = {
    f"every key, {layout}": (ranks, [*BACKBONE, *parallel])
    for layout, (ranks, parallel) in {**LAYOUTS, **RECOMPUTATION, **FUSED}.items()
}
POSITIONS = ("absolute_1.5B", "learnable_absolute_1.5B", "relative_1.5B", "none_1.5B")
CELLS = [
    *((name, layout) for name in ("gqa_1.5B", "mqa_1.5B", "mla_1.5B") for layout in [*LAYOUTS, *RECOMPUTATION]),
    # NSA does not share a sequence over ranks.
    *(("nsa_1.5B", layout) for layout in [*LAYOUTS, *RECOMPUTATION] if "CP" not in layout),
    # Tensor parallelism without sequence parallelism is refused for experts.
    *(
        ("moe_1.5Bx8", layout)
        for layout in [*LAYOUTS, *RECOMPUTATION, *EXPERT_LAYOUTS]
        if not layout.startswith("TP 2") or "SP" in layout
    ),
    *(
        (name, layout)
        for name in POSITIONS
        for layout in ("TP 2", "TP 2 with SP", "PP 2", "PP 2 interleaved", "DP 2 with distributed optimizer", "CP 2")
        # A bias on the scores does not share a sequence over ranks: refused.
        if (name, layout) != ("relative_1.5B", "CP 2")
    ),
    ("relative_1.5B", "full recomputation"),
    ("learnable_absolute_1.5B", "CP 2 x TP 2 with SP"),
    # A table that every stage holds: split over heads, and cut by the distributed optimizer.
    ("relative_1.5B", "TP 2 x PP 2"),
    ("relative_1.5B", "PP 2 x DP 2"),
    # An output table of its own is on the last stage alone; the gradients of heads' norms are sums over tp ranks.
    *(
        ("gqa_1.5B", f"every key, {layout}")
        for layout in ("TP 2", "TP 2 with SP", "PP 2", "TP 2 x PP 2", "CP 2 x PP 2 interleaved", "PP 2 x DP 2")
    ),
    ("gqa_1.5B", "every key, full recomputation"),
    # Both ranks have the one key.
    ("mqa_1.5B", "every key, TP 2"),
    ("nanochat_d12", "TP 2 x PP 2"),
    *(("gqa_1.5B", f"{layout}, no overlap") for layout in ("PP 2 x DP 2", "PP 2 interleaved x DP 2", "CP 2 x DP 2")),
    ("moe_1.5Bx8", "EP 2, no overlap"),
]
# Compilers take their time.
FUSED_CELLS = [("mla_1.5B", "fused, TP 2 with SP"), ("moe_1.5Bx8", "fused"), ("gqa_1.5B", "every key, fused")]
# Every layout of two ranks once, and every variant once.
QUICK = {
    *(("gqa_1.5B", layout) for layout in ("TP 2", "TP 2 with SP", "PP 2", "DP 2", "CP 2", "PP 2 interleaved")),
    ("gqa_1.5B", "selective recomputation"),
    ("mqa_1.5B", "DP 2 with distributed optimizer"),
    ("mla_1.5B", "TP 2 with SP"),
    ("nsa_1.5B", "TP 2"),
    ("moe_1.5Bx8", "EP 2"),
    ("relative_1.5B", "PP 2"),
    ("absolute_1.5B", "CP 2"),
    ("learnable_absolute_1.5B", "TP 2 with SP"),
    ("none_1.5B", "PP 2"),
    ("gqa_1.5B", "every key, TP 2"),
    ("gqa_1.5B", "every key, PP 2"),
}


def test_no_architecture_is_left_out() -> None:
    def parts(name: str) -> tuple[str, str, bool]:
        model = resolve(name).model
        return model.attention.kind, model.position.kind, model.moe is not None

    assert {parts(run.name) for run in load_matrix().runs} <= {parts(name) for name, _ in CELLS}


@pytest.fixture(scope="session")
def single(ranks: Callable[[int], Ranks], corpus: Path) -> Callable[..., Outcome]:
    """`single(name, *overrides)`: a single rank's outcome for a variant."""

    @functools.cache
    def outcome(name: str, *overrides: str) -> Outcome:
        config = tiny(name, f"data.cache={corpus.parent}", "parallel.distributed_optimizer=false", *overrides)
        return ranks(1).call(train, config, corpus, STEPS)[0]

    return outcome


@pytest.mark.parametrize(
    ("name", "layout"),
    [cell if cell in QUICK else pytest.param(*cell, marks=pytest.mark.proof) for cell in [*CELLS, *FUSED_CELLS]],
)
def test_layout_equals_single_rank(
    name: str, layout: str, ranks: Callable[[int], Ranks], single: Callable[..., Outcome], corpus: Path
) -> None:
    size, overrides = (LAYOUTS | RECOMPUTATION | FUSED | EXPERT_LAYOUTS | NO_OVERLAP | BACKBONE_LAYOUTS)[layout]
    config = tiny(name, f"data.cache={corpus.parent}", *overrides)
    outcomes = ranks(size).call(train, config, corpus, STEPS)
    expected = single(name, *(each for each in overrides if each.startswith("model.")))
    assert_equals_single_rank(outcomes, expected, config.model.vocab_size, RELATIVE)


@pytest.mark.parametrize("name", dict(CELLS))
def test_single_rank_learns(name: str, single: Callable[..., Outcome]) -> None:
    outcome = single(name, "training.epsilon=1e-8", "training.learning_rate=1e-2")
    assert outcome.losses[-1] < outcome.losses[0] - 0.1
    assert torch.isfinite(torch.tensor(outcome.norms)).all()
