"""A run begins with another run's weights, of any layout, under a new optimizer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checkpoints import begin, read_weights, train
from support.command_line import damage
from support.configs import tiny
from support.ranks import Ranks

from efficientbench.config.schema import RunConfig
from efficientbench.training.checkpoints.manifest import checkpoint_folder, identity

STEPS, SAVED = 4, 2
RELATIVE = 1e-5
LAYOUTS = {
    "single": (1, []),
    "TP 2": (2, ["parallel.tp=2"]),
    "TP 2 with SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "PP 2 interleaved": (2, ["parallel.pp=2", "parallel.vpp=2", "model.layers=4"]),
    "DP 2": (2, ["parallel.dp=2"]),
    "DP 2, plain optimizer": (2, ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    "CP 2": (2, ["parallel.cp=2"]),
    "TP 2 x PP 2": (4, ["parallel.tp=2", "parallel.pp=2"]),
    "TP 2 x DP 2": (4, ["parallel.tp=2", "parallel.dp=2"]),
    "EP 2": (2, ["parallel.ep=2", "parallel.dp=2"]),
}
QUICK = [("gqa_1.5B", "DP 2", "TP 2")]
CELLS = [
    *QUICK,
    ("gqa_1.5B", "TP 2", "DP 2, plain optimizer"),
    ("gqa_1.5B", "TP 2 x PP 2", "CP 2"),
    ("gqa_1.5B", "PP 2 interleaved", "TP 2 x DP 2"),
    ("moe_1.5Bx8", "EP 2", "TP 2 with SP"),
    ("moe_1.5Bx8", "PP 2", "EP 2"),
    ("mla_1.5B", "TP 2", "PP 2"),
    ("nsa_1.5B", "PP 2", "TP 2"),
    ("relative_1.5B", "DP 2", "PP 2"),
    ("learnable_absolute_1.5B", "TP 2", "PP 2"),
    ("nanochat_d12", "TP 2 with SP", "PP 2"),
]

Base = Callable[..., Path]


def configured(name: str, corpus: Path, *overrides: str) -> RunConfig:
    return tiny(name, f"data.cache={corpus.parent}", f"checkpoint.interval={SAVED}", "checkpoint.keep=3", *overrides)


@pytest.fixture(scope="module")
def base(ranks: Callable[[int], Ranks], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Base:
    """`base(name, size, *overrides)`: the folder of a run with two checkpoints, trained once."""
    folders: dict[tuple[object, ...], Path] = {}

    def run(name: str, size: int, *overrides: str) -> Path:
        key = (name, size, *overrides)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("base")
            ranks(size).call(train, configured(name, corpus, *overrides), corpus, STEPS, folders[key])
        return folders[key]

    return run


@pytest.mark.parametrize(
    "cell", [each if each in QUICK else pytest.param(each, marks=pytest.mark.proof) for each in CELLS], ids=" to ".join
)
def test_any_layout_can_be_initialised_from_any_other(
    cell: tuple[str, str, str], ranks: Callable[[int], Ranks], corpus: Path, base: Base, tmp_path: Path
) -> None:
    name, source, target = cell
    model = ["model.layers=4"] if "interleaved" in source + target else []
    size, overrides = LAYOUTS[source]
    folder = checkpoint_folder(base(name, size, *overrides, *model), STEPS)
    # Other weights, were they drawn.
    new = ("training.seed=99", *model)
    size, overrides = LAYOUTS[target]
    many = ranks(size).call(begin, configured(name, corpus, *overrides, *new), corpus, STEPS, tmp_path / "many", folder)
    (one,) = ranks(1).call(begin, configured(name, corpus, *new), corpus, STEPS, tmp_path / "one", folder)
    for outcome in many:
        assert outcome.updates_before == 0
        assert outcome.losses == pytest.approx(one.losses, rel=RELATIVE)
        assert outcome.norms == pytest.approx(one.norms, rel=RELATIVE)
        assert outcome.validation_losses == pytest.approx(one.validation_losses, rel=RELATIVE)
    expected = read_weights(folder)
    before = read_weights(checkpoint_folder(tmp_path / "many", 0))
    assert before.keys() == expected.keys()
    assert all(torch.equal(before[key], expected[key]) for key in expected)


@pytest.mark.parametrize("kept", [SAVED, STEPS], ids=["everything", "weights alone"])
@pytest.mark.parametrize("target", ["DP 2", pytest.param("DP 2, plain optimizer", marks=pytest.mark.proof)])
def test_master_weights_equal_the_initial_weights_in_another_dtype(
    kept: int, target: str, ranks: Callable[[int], Ranks], corpus: Path, base: Base, tmp_path: Path
) -> None:
    """Masters of the weights that were drawn, or of the other run, would take the weights' place in the first step."""
    size, overrides = LAYOUTS["TP 2"]
    folder = checkpoint_folder(base("gqa_1.5B", size, *overrides), kept)
    still = ("training.learning_rate=1e-30", "training.min_learning_rate=0", "training.dtype=bf16")
    size, overrides = LAYOUTS[target]
    config = configured("gqa_1.5B", corpus, *overrides, *still, "training.seed=99")
    ranks(size).call(begin, config, corpus, STEPS, tmp_path, folder)
    expected, weights = read_weights(folder), read_weights(checkpoint_folder(tmp_path, STEPS))
    for key, tensor in expected.items():
        assert torch.equal(weights[key], tensor.bfloat16()), key


@pytest.mark.parametrize("what", ["damaged", "exchanged"])
def test_a_checkpoint_other_than_the_named_one_is_refused(
    what: str, ranks: Callable[[int], Ranks], corpus: Path, base: Base, tmp_path: Path
) -> None:
    size, overrides = LAYOUTS["DP 2"]
    folder = checkpoint_folder(tmp_path, STEPS)
    shutil.copytree(checkpoint_folder(base("gqa_1.5B", size, *overrides), STEPS), folder)
    named = identity(folder) if what == "damaged" else "0" * 64
    file = next(folder.glob("*.distcp"))
    reason = "is another checkpoint than that which the run was to begin with"
    if what == "damaged":
        damage(file)
        reason = f"{file}: damaged, its SHA-256 is not that of the manifest"
    with pytest.raises(AssertionError, match=re.escape(reason)):
        ranks(1).call(begin, configured("gqa_1.5B", corpus), corpus, STEPS, tmp_path / "run", folder, named)
