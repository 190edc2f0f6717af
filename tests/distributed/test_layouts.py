"""Every layout computes what a single rank computes: loss and gradient norm at each of 10 steps, every gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.cells import Outcome, train, whole_gradients, write_corpus
from support.configs import tiny
from support.ranks import Ranks

STEPS = 10
RELATIVE = 1e-5
LAYOUTS = {
    "TP 2": (2, ["parallel.tp=2"]),
    "TP 2 with SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "DP 2": (2, ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "DP 2 with distributed optimizer": (2, ["parallel.dp=2"]),
    "TP 2 x PP 2": (4, ["parallel.tp=2", "parallel.pp=2"]),
    "TP 2 x DP 2": (4, ["parallel.tp=2", "parallel.dp=2"]),
}
EXPERT_LAYOUTS = {
    "EP 2": (2, ["parallel.ep=2", "parallel.dp=2"]),
    "EP 2, plain optimizer": (2, ["parallel.ep=2", "parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "EP 2 x TP 2 with SP": (4, ["parallel.ep=2", "parallel.dp=2", "parallel.tp=2", "parallel.sp=true"]),
}
CELLS = [
    *((name, layout) for name in ("gqa_1.5B", "mqa_1.5B") for layout in LAYOUTS),
    # Tensor parallelism without sequence parallelism is refused for experts.
    *(
        ("moe_1.5Bx8", layout)
        for layout in [*LAYOUTS, *EXPERT_LAYOUTS]
        if not layout.startswith("TP 2") or "SP" in layout
    ),
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("corpus") / "tokens"
    write_corpus(prefix, vocab_size=131)
    return prefix


@pytest.fixture(scope="session")
def single(ranks: Callable[[int], Ranks], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """A single rank's outcome for each variant."""
    cache = tmp_path_factory.mktemp("cache")
    return {
        name: ranks(1).call(
            train, tiny(name, f"data.cache={cache}", "parallel.distributed_optimizer=false"), corpus, STEPS
        )[0]
        for name in dict(CELLS)
    }


@pytest.mark.parametrize(("name", "layout"), CELLS)
def test_layout_equals_single_rank(
    name: str, layout: str, ranks: Callable[[int], Ranks], single: dict[str, Outcome], corpus: Path, tmp_path: Path
) -> None:
    size, overrides = (LAYOUTS | EXPERT_LAYOUTS)[layout]
    config = tiny(name, f"data.cache={tmp_path}", *overrides)
    outcomes = ranks(size).call(train, config, corpus, STEPS)
    expected = single[name]
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(expected.losses, rel=RELATIVE)
        assert outcome.norms == pytest.approx(expected.norms, rel=RELATIVE)
        assert outcome.validation_losses == pytest.approx(expected.validation_losses, rel=RELATIVE)
        assert outcome.auxiliary_losses == pytest.approx(expected.auxiliary_losses, rel=RELATIVE)
        assert outcome.tokens_per_expert == expected.tokens_per_expert
    gradients = whole_gradients(outcomes, config.model.vocab_size)
    oracle = whole_gradients([expected], config.model.vocab_size)
    assert gradients.keys() == oracle.keys()
    for key, gradient in gradients.items():
        error = (gradient - oracle[key]).abs().max() / oracle[key].abs().max()
        assert error < RELATIVE, f"{key}: relative error {error:.1e}"


def test_single_rank_learns(single: dict[str, Outcome]) -> None:
    for outcome in single.values():
        assert outcome.losses[-1] < outcome.losses[0] - 0.1
        assert torch.isfinite(torch.tensor(outcome.norms)).all()
