"""Whole steps (gradients, clipping, schedule, AdamW, decay) equal those of other code in float64, in every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from oracles.whole_steps import Expected, expected, renamed, uneven_vectors
from support.checkpoints import Resumed, read_weights, train
from support.configs import BACKBONE, tiny
from support.ranks import Ranks

from efficientbench.config.schema import RunConfig
from efficientbench.training.checkpoints.manifest import checkpoint_folder

STEPS, SAVED = 6, 3
RELATIVE = 1e-5
# A norm that is clipped in some steps, a rate that rises and falls, and a decay that six steps show.
OPTIMIZER = [
    "training.learning_rate=3e-3",
    "training.min_learning_rate=3e-4",
    "training.lr_warmup_fraction=0.34",
    "training.weight_decay=0.3",
    "training.beta1=0.8",
    "training.beta2=0.9",
    "training.gradient_clip=2.55",
    # So large that the rounding of a gradient near 0 stays rounding, and that its place in the formula shows.
    "training.epsilon=1e-4",
    "model.init_std=0.2",
]
TURNS = "model.position.base=100"
"""So that in 16 tokens every part of a key is rotated: a bias on what is not has a true gradient of 0."""
MUON = [
    "training.optimizer=muon",
    "training.matrix_learning_rate=1e-2",
    "training.embedding_learning_rate=6e-3",
    "training.gradient_clip=2.75",
]
MODELS = {
    "GQA": ("gqa_1.5B", [TURNS]),
    "MLA": ("mla_1.5B", ["model.attention.q_lora_rank=20"]),
    "MoE": ("moe_1.5Bx8", ["model.attention.qkv_bias=false"]),
    "NSA": ("nsa_1.5B", [TURNS]),
    "learned": ("learnable_absolute_1.5B", ["model.position.max_seq_len=16"]),
    "relative": ("relative_1.5B", ["model.position.buckets=8", "model.position.max_distance=12"]),
    # Smaller weights, for a norm of the same size.
    "backbone": ("gqa_1.5B", [TURNS, *BACKBONE, "model.init_std=0.1"]),
    "GQA by Muon": ("gqa_1.5B", [TURNS, *MUON]),
    "MLA by Muon": ("mla_1.5B", ["model.attention.q_lora_rank=20", *MUON]),
    "MoE by Muon": ("moe_1.5Bx8", ["model.attention.qkv_bias=false", *MUON]),
    "NSA by Muon": ("nsa_1.5B", [TURNS, *MUON, "training.gradient_clip=2.4"]),
}
LAYOUTS = {
    "single": (1, []),
    "plain optimizer": (1, ["parallel.distributed_optimizer=false"]),
    "DP 2": (2, ["parallel.dp=2"]),
    "DP 2, plain optimizer": (2, ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "TP 2 with SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "EP 2": (2, ["parallel.ep=2", "parallel.dp=2"]),
}
CASES = [
    *((model, "single", "plain optimizer") for model in MODELS if "Muon" not in model),
    ("GQA by Muon", "single", "TP 2 with SP"),
    ("GQA by Muon", "DP 2", "PP 2"),
    ("MLA by Muon", "TP 2 with SP", "DP 2"),
    ("MoE by Muon", "EP 2", "TP 2 with SP"),
    ("MoE by Muon", "TP 2 with SP", "EP 2"),
    ("NSA by Muon", "PP 2", "TP 2 with SP"),
    ("GQA", "DP 2", "DP 2"),
    ("GQA", "DP 2, plain optimizer", "PP 2"),
    ("GQA", "PP 2", "TP 2 with SP"),
    ("MLA", "TP 2 with SP", "DP 2"),
    ("MoE", "EP 2", "TP 2 with SP"),
    ("NSA", "DP 2", "TP 2 with SP"),
    ("learned", "TP 2 with SP", "PP 2"),
    ("relative", "PP 2", "DP 2, plain optimizer"),
    ("backbone", "TP 2 with SP", "PP 2"),
]
QUICK = [("GQA", "DP 2", "DP 2"), ("GQA by Muon", "single", "TP 2 with SP")]


@pytest.fixture(scope="module")
def other(ranks: Callable[[int], Ranks], corpus: Path) -> Callable[[str], Expected]:
    """`other(model)` is what the other code comes to, computed once."""
    found: dict[str, Expected] = {}

    def compute(model: str) -> Expected:
        if model not in found:
            [found[model]] = ranks(1).call(expected, configured(model, "single", corpus), corpus, STEPS)
        return found[model]

    return compute


def configured(model: str, layout: str, corpus: Path) -> RunConfig:
    name, overrides = MODELS[model]
    places = [f"data.cache={corpus.parent}", f"checkpoint.interval={SAVED}"]
    return tiny(name, *OPTIMIZER, *overrides, *LAYOUTS[layout][1], *places)


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.proof) for case in CASES], ids=", ".join
)
def test_six_steps_and_the_last_three_after_a_resume(
    case: tuple[str, str, str],
    ranks: Callable[[int], Ranks],
    corpus: Path,
    other: Callable[[str], Expected],
    tmp_path: Path,
) -> None:
    model, before, after = case
    wanted, resume = other(model), None
    assert min(wanted.norms) < configured(model, before, corpus).training.gradient_clip < max(wanted.norms)
    for part, layout in enumerate((before, after)):
        config, folder = configured(model, layout, corpus), tmp_path / str(part)
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
