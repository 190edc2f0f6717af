"""A run that goes on from a checkpoint trains as if it had never stopped: bit for bit, and in other layouts too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checkpoints import Resumed, read_weights, train
from support.configs import ATTENTIONS, ENCODINGS, FINE, chosen, has_matrices, has_table, tiny_model
from support.proofs import proofs_but
from support.ranks import Ranks
from support.tiny_training import tiny_training

from efficientbench.config.combination_table import problems
from efficientbench.config.schema import RunConfig
from efficientbench.doctor.variant.cases import LAYOUTS
from efficientbench.training.checkpoints.manifest import checkpoint_folder

STEPS, SAVED = 8, 4
RELATIVE = 1e-5

RATES = ["training.embedding_learning_rate=1e-3", "training.head_learning_rate=3e-4"]
"""Each stage lacks one of the tables."""
ON_TP = chosen(ATTENTIONS, lambda config: not problems(config, LAYOUTS["tensor parallel"]))
TABLES = chosen(ENCODINGS, has_table)
OVER_GLOBAL = ["model.moe.auxiliary_over=global", "model.moe.auxiliary_loss=0.1"]
BY_MUON = [name for name in ON_TP if name in chosen(ATTENTIONS, has_matrices)]
EXACT = {
    **{f"{name}, TP 2, fp16": (2, name, ["parallel.tp=2", "training.dtype=fp16"]) for name in ON_TP},
    **{f"{name}, PP 2": (2, name, ["parallel.pp=2"]) for name in TABLES},
    "DP 2": (2, "gqa", ["parallel.dp=2"]),
    "DP 2, bf16": (2, "gqa", ["parallel.dp=2", "training.dtype=bf16"]),
    "DP 2, plain optimizer, bf16": (
        2,
        "gqa",
        ["parallel.dp=2", "training.dtype=bf16", "parallel.distributed_optimizer=false"],
    ),
    "TP 2, plain optimizer": (2, "gqa", ["parallel.tp=2", "parallel.distributed_optimizer=false"]),
    "PP 2 interleaved": (2, "gqa", ["parallel.pp=2", "parallel.vpp=2", "model.layers=4"]),
    "experts, EP 2": (2, "moe", ["parallel.ep=2", "parallel.dp=2"]),
    "experts, TP 2 with SP": (2, "moe", ["parallel.tp=2", "parallel.sp=true"]),
    "experts over the global batch, EP 2": (2, "moe", ["parallel.ep=2", "parallel.dp=2", *OVER_GLOBAL]),
    "experts over the global batch, PP 2, bf16": (2, "moe", ["parallel.pp=2", "training.dtype=bf16", *OVER_GLOBAL]),
    "experts' bias, EP 2, bf16": (2, FINE, ["parallel.ep=2", "parallel.dp=2", "training.dtype=bf16"]),
    "CP 2": (2, "gqa", ["parallel.cp=2"]),
    "two tables on two stages, bf16": (2, "nanochat", ["parallel.pp=2", "training.dtype=bf16"]),
    "TP 2 x DP 2": (4, "gqa", ["parallel.tp=2", "parallel.dp=2"]),
    "Muon, TP 2, bf16": (2, "gqa", ["parallel.tp=2", "training.dtype=bf16", "training.optimizer=muon"]),
    "Muon, experts, EP 2, fp16": (
        2,
        "moe",
        ["parallel.ep=2", "parallel.dp=2", "training.dtype=fp16", "training.optimizer=muon"],
    ),
    "Muon, two tables on two stages": (2, "nanochat", ["parallel.pp=2", "training.optimizer=muon", *RATES]),
    "two tables with rates of their own on two stages": (2, "nanochat", ["parallel.pp=2", *RATES]),
}
QUICK = ("DP 2, bf16", "PP 2 interleaved")

KEYS = {
    "single": (1, []),
    "single, plain optimizer": (1, ["parallel.distributed_optimizer=false"]),
    "TP 2": (2, ["parallel.tp=2"]),
    "TP 2 with SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "PP 2 interleaved": (2, ["parallel.pp=2", "parallel.vpp=2"]),
    "DP 2": (2, ["parallel.dp=2"]),
    "DP 2, plain optimizer": (2, ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "CP 2": (2, ["parallel.cp=2"]),
    "EP 2": (2, ["parallel.ep=2", "parallel.dp=2"]),
    "EP 2, plain optimizer": (2, ["parallel.ep=2", "parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "TP 2 x DP 2": (4, ["parallel.tp=2", "parallel.dp=2"]),
    "TP 2 with SP x PP 2": (4, ["parallel.tp=2", "parallel.sp=true", "parallel.pp=2"]),
}
RESHARDED = [
    *(
        ("gqa", "DP 2", to)
        for to in ("single", "TP 2 with SP", "PP 2", "PP 2 interleaved", "CP 2", "DP 2, plain optimizer")
    ),
    *(("gqa", "PP 2 interleaved", to) for to in ("TP 2", "DP 2", "single, plain optimizer")),
    *(("gqa", "TP 2 with SP x PP 2", to) for to in ("DP 2", "TP 2 x DP 2")),
    ("gqa", "DP 2, plain optimizer", "TP 2"),
    *(("moe", "EP 2", to) for to in ("single", "DP 2", "TP 2 with SP", "EP 2, plain optimizer")),
    *(("moe", "TP 2 with SP", to) for to in ("EP 2", "PP 2")),
    *((FINE, "EP 2", to) for to in ("TP 2 with SP", "single")),
    ("moe", "DP 2, plain optimizer", "EP 2"),
    *((name, "TP 2", "PP 2") for name in ON_TP if name != "gqa"),
    *((name, "PP 2", "TP 2") for name in TABLES),
    ("nanochat", "TP 2 with SP x PP 2", "DP 2"),
    ("nanochat", "PP 2", "TP 2"),
    *(("gqa by Muon", "DP 2", to) for to in ("TP 2 with SP", "PP 2")),
    *((f"{name} by Muon", "TP 2", "DP 2") for name in BY_MUON if name != "gqa"),
    ("moe by Muon", "EP 2", "TP 2 with SP"),
]
QUICK_RESHARDED = [("gqa", "DP 2", "TP 2 with SP")]

Saved = Callable[..., tuple[Resumed, Path]]


def configured(name: str, cache: Path, overrides: list[str]) -> RunConfig:
    named, muon, _ = name.partition(" by Muon")
    optimizer = ["training.optimizer=muon"] if muon else []
    return tiny_model(named, f"data.cache={cache}", f"checkpoint.interval={SAVED}", *optimizer, *overrides)


@pytest.fixture(scope="module")
def saved(ranks: Callable[[int], Ranks], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """`saved(name, size, *overrides)`: an undisturbed run and its folder, trained once."""
    runs: dict[tuple[object, ...], tuple[Resumed, Path]] = {}

    def run(name: str, size: int, *overrides: str) -> tuple[Resumed, Path]:
        key = (name, size, *overrides)
        if key not in runs:
            folder = tmp_path_factory.mktemp("run")
            config = configured(name, corpus.parent, list(overrides))
            runs[key] = ranks(size).call(train, config, corpus, STEPS, folder)[0], folder
        return runs[key]

    return run


@pytest.mark.parametrize("cell", proofs_but(QUICK, EXACT))
def test_resume_is_exact(cell: str, ranks: Callable[[int], Ranks], corpus: Path, saved: Saved, tmp_path: Path) -> None:
    size, name, overrides = EXACT[cell]
    whole, folder = saved(name, size, *overrides)
    config = configured(name, corpus.parent, overrides)
    for outcome in ranks(size).call(train, config, corpus, STEPS, tmp_path, checkpoint_folder(folder, SAVED)):
        assert outcome.began_after == SAVED
        assert outcome.losses == whole.losses[SAVED:]
        assert outcome.norms == whole.norms[SAVED:]
        assert outcome.validation_losses == whole.validation_losses[-1:]
    expected, weights = (read_weights(checkpoint_folder(each, STEPS)) for each in (folder, tmp_path))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


@pytest.mark.parametrize("cell", proofs_but(QUICK_RESHARDED, RESHARDED), ids=" to ".join)
def test_resume_in_another_layout(
    cell: tuple[str, str, str], ranks: Callable[[int], Ranks], corpus: Path, saved: Saved, tmp_path: Path
) -> None:
    name, source, target = cell
    model = ["model.layers=4"] if "interleaved" in source + target else []
    size, overrides = KEYS[source]
    whole, folder = saved(name, size, *overrides, *model)
    size, overrides = KEYS[target]
    config = configured(name, corpus.parent, [*overrides, *model])
    for outcome in ranks(size).call(train, config, corpus, STEPS, tmp_path, checkpoint_folder(folder, SAVED)):
        assert outcome.losses == pytest.approx(whole.losses[SAVED:], rel=RELATIVE)
        assert outcome.norms == pytest.approx(whole.norms[SAVED:], rel=RELATIVE)
    # The same weights, whoever cut them: what differs is rounding.
    expected, weights = (read_weights(checkpoint_folder(each, STEPS)) for each in (folder, tmp_path))
    assert weights.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(weights[key], tensor, rtol=1e-3, atol=1e-5)


def test_checkpoints_use_the_names_of_the_initial_weights(saved: Saved) -> None:
    _, folder = saved("moe", 2, "parallel.ep=2", "parallel.dp=2")
    weights = read_weights(checkpoint_folder(folder, STEPS))
    assert weights["embedding.word_embeddings.weight"].shape == (131, 48)
    experts = [name for name in weights if name.startswith("decoder.layers.1.mlp.experts.")]
    assert sorted(experts)[:2] == [
        "decoder.layers.1.mlp.experts.0.linear_fc1.weight",
        "decoder.layers.1.mlp.experts.0.linear_fc2.weight",
    ]
    assert weights["decoder.layers.1.mlp.experts.0.linear_fc1.weight"].dim() == 2


def stopped(config: RunConfig, prefix: Path, at: int) -> bool:
    """Whether a training of two steps ended early that was asked to stop in one of them."""
    asked = itertools.count(1)
    with tiny_training(config, prefix, 2) as trainer:
        return trainer.train(lambda: next(asked) == at)


def test_a_stop_in_the_last_step_completes_the_run(ranks: Callable[[int], Ranks], corpus: Path) -> None:
    """An attempt after it would have no step to measure."""
    config = tiny_model("gqa", "parallel.dp=2")
    assert [ranks(2).call(stopped, config, corpus, at) for at in (1, 2)] == [[True, True], [False, False]]
