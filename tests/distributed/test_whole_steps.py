"""Whole steps (gradients, clipping, schedule, AdamW, decay) equal those of other code in float64, in every layout."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from oracles.whole_steps import Expected, expected, renamed, uneven_vectors
from support.checkpoints import Resumed, read_weights, train
from support.configs import (
    ATTENTIONS,
    ENCODINGS,
    EVERY_KEY,
    MODELS,
    chosen,
    conditioned,
    has_matrices,
    has_table,
    tiny_model,
)
from support.proofs import proofs_but
from support.ranks import Ranks

from efficientbench.config.combination_table import problems
from efficientbench.config.schema import RunConfig
from efficientbench.doctor.variant.cases import LAYOUTS as SHARED
from efficientbench.training.checkpoints.manifest import checkpoint_folder

STEPS, SAVED = 6, 3
RELATIVE = 1e-5
# A rate that rises and falls, and a decay that six steps show.
OPTIMIZER = [
    "training.learning_rate=3e-3",
    "training.min_learning_rate=3e-4",
    "training.lr_warmup_fraction=0.34",
    "training.weight_decay=0.3",
    "training.beta1=0.8",
    "training.beta2=0.9",
    # So large that the rounding of a gradient near 0 stays rounding, and that its place in the formula shows.
    "training.epsilon=1e-4",
    "model.init_std=0.2",
]
TURNS = "model.position.base=100"
"""So that in 16 tokens every part of a key is rotated: a bias on what is not has a true gradient of 0."""
MUON = ["training.optimizer=muon", "training.matrix_learning_rate=1e-2", "training.embedding_learning_rate=6e-3"]
TRAINED = [*ATTENTIONS, *chosen(ENCODINGS, has_table), "moe", EVERY_KEY]
OVERRIDES = {
    **dict.fromkeys(chosen(MODELS, lambda config: config.model.position.kind == "rope"), [TURNS]),
    # Mixtral has no bias.
    "moe": ["model.attention.qkv_bias=false"],
    # Smaller weights, for a norm of the same size.
    EVERY_KEY: [TURNS, "model.init_std=0.1"],
}
BALANCED = "model.moe.auxiliary_loss=0.1"
"""So that the loss that balances experts shows."""
LAYOUTS = {
    "single": (1, []),
    "plain optimizer": (1, ["parallel.distributed_optimizer=false"]),
    "DP 2": (2, ["parallel.dp=2"]),
    "DP 2, plain optimizer": (2, ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "TP 2 with SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "EP 2": (2, ["parallel.ep=2", "parallel.dp=2"]),
    "EP 2, micro-batches of 1": (2, ["parallel.ep=2", "parallel.dp=2", "training.micro_batch_size=1"]),
    "TP 2 with SP, micro-batches of 2": (2, ["parallel.tp=2", "parallel.sp=true", "training.micro_batch_size=2"]),
}
RICHEST = {name.partition(",")[0]: name for name in ATTENTIONS}
"""Kind of attention → the last of its models."""
ON_TP = [name for name in RICHEST.values() if not problems(tiny_model(name), SHARED["sequence parallel"])]
CASES = [
    *((model, "single", "plain optimizer") for model in TRAINED),
    *((model, "TP 2 with SP", "DP 2") for model in ON_TP),
    *((f"{model} by Muon", "PP 2", "TP 2 with SP") for model in ON_TP if has_matrices(tiny_model(model))),
    *((model, "PP 2", "DP 2, plain optimizer") for model in chosen(ENCODINGS, has_table)),
    *((model, "TP 2 with SP", "PP 2") for model in chosen(ENCODINGS, has_table)),
    ("gqa by Muon", "single", "TP 2 with SP"),
    ("gqa by Muon", "DP 2", "PP 2"),
    ("moe by Muon", "EP 2", "TP 2 with SP"),
    ("moe by Muon", "TP 2 with SP", "EP 2"),
    ("gqa", "DP 2", "DP 2"),
    ("gqa", "DP 2, plain optimizer", "PP 2"),
    ("gqa", "PP 2", "TP 2 with SP"),
    ("moe", "EP 2", "TP 2 with SP"),
    (EVERY_KEY, "TP 2 with SP", "PP 2"),
    ("moe over sequence", "TP 2 with SP, micro-batches of 2", "EP 2, micro-batches of 1"),
    ("moe over global", "EP 2, micro-batches of 1", "TP 2 with SP, micro-batches of 2"),
]
QUICK = [("gqa", "DP 2", "DP 2")]


@dataclass
class Other:
    """What the other code comes to."""

    clip: str
    """The norm at which it clips, as an override: it clips some steps, and others not."""
    expected: Expected


@pytest.fixture(scope="module")
def other(ranks: Callable[[int], Ranks], corpus: Path) -> Callable[[str], Other]:
    """`other(model)` is what the other code comes to, computed once."""

    @functools.cache
    def compute(model: str) -> Other:
        clip = "training.gradient_clip=1e9"
        for _ in range(2):
            [found] = ranks(1).call(expected, configured(model, "single", corpus, clip), corpus, STEPS)
            last, clip = clip, f"training.gradient_clip={statistics.median(found.norms)}"
        return Other(last, found)

    return compute


def configured(model: str, layout: str, corpus: Path, clip: str) -> RunConfig:
    name, muon, _ = model.partition(" by Muon")
    name, _, over = name.partition(" over ")
    places = [f"data.cache={corpus.parent}", f"checkpoint.interval={SAVED}"]
    own = [*OVERRIDES.get(name, []), *(MUON if muon else [])]
    own += [BALANCED, f"model.moe.auxiliary_over={over}"] if over else []
    return tiny_model(name, *OPTIMIZER, *conditioned(name), *own, clip, *LAYOUTS[layout][1], *places)


@pytest.mark.parametrize("case", proofs_but(QUICK, CASES), ids=", ".join)
def test_six_steps_match_the_oracle_also_after_a_resume(
    case: tuple[str, str, str],
    ranks: Callable[[int], Ranks],
    corpus: Path,
    other: Callable[[str], Other],
    tmp_path: Path,
) -> None:
    model, before, after = case
    clip, wanted, resume = other(model).clip, other(model).expected, None
    for part, layout in enumerate((before, after)):
        config, folder = configured(model, layout, corpus, clip), tmp_path / str(part)
        assert min(wanted.norms) < config.training.gradient_clip < max(wanted.norms)
        outcomes = ranks(LAYOUTS[layout][0]).call(train, config, corpus, STEPS, folder, resume, uneven_vectors)
        assert_equal(outcomes, wanted, folder, config)
        resume = checkpoint_folder(tmp_path / "0", SAVED)


def assert_equal(outcomes: list[Resumed], wanted: Expected, folder: Path, config: RunConfig) -> None:
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(wanted.losses[outcome.began_after :], rel=RELATIVE)
        assert outcome.norms == pytest.approx(wanted.norms[outcome.began_after :], rel=RELATIVE)
    found = renamed(read_weights(checkpoint_folder(folder, STEPS)), config.model)
    assert found.keys() >= wanted.weights.keys()
    for name, weight in wanted.weights.items():
        if name.endswith("k_proj.bias") and config.model.position.kind != "rope":
            # It moves all scores of a query alike: its true gradient is 0, and AdamW makes steps of the rounding.
            continue
        assert (found[name] - weight).abs().max() <= RELATIVE * weight.abs().max(), name
