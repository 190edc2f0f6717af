"""A branch of a longer run trains as a run of its length that was never a trunk: bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checkpoints import read_weights, train
from support.configs import tiny
from support.ranks import Ranks

from efficientbench.config.schema import RunConfig
from efficientbench.training.checkpoints.manifest import checkpoint_folder, complete, identity

STEP = 512
"""Tokens of a step: the trunk reads the corpus more than once, in an order over all its epochs."""
TRUNK, BRANCH, BEGIN = 20, 12, 9
LAYOUTS = {
    "DP 2": (2, ["parallel.dp=2"]),
    "single": (1, []),
    "DP 2, bf16, plain optimizer": (
        2,
        ["parallel.dp=2", "training.dtype=bf16", "parallel.distributed_optimizer=false"],
    ),
    "PP 2, Muon": (2, ["parallel.pp=2", "training.optimizer=muon"]),
}


def configured(corpus: Path, *overrides: str) -> RunConfig:
    batch = ("training.global_batch_size=32", "training.lr_schedule=wsd", f"training.lr_warmup_tokens={2 * STEP}")
    return tiny("gqa_1.5B", f"data.cache={corpus.parent}", "checkpoint.interval=2", *batch, *overrides)


@pytest.mark.proof
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_branch_equals_a_run_of_its_length(
    layout: str, ranks: Callable[[int], Ranks], corpus: Path, tmp_path: Path
) -> None:
    size, overrides = LAYOUTS[layout]
    marked = f"checkpoint.at_tokens=[{BRANCH * STEP * 8 // 10},{3 * STEP + 1}]"
    trunk, branch, alone = tmp_path / "trunk", tmp_path / "branch", tmp_path / "alone"
    ranks(size).call(train, configured(corpus, *overrides, marked, "checkpoint.keep=1"), corpus, TRUNK, trunk)
    kept = [int(folder.name.removeprefix("step_")) for folder in complete(trunk)]
    assert kept == [3, BEGIN, TRUNK]
    order = f"data.order_tokens={TRUNK * STEP}"
    sha256 = identity(checkpoint_folder(trunk, BEGIN))
    init = (f"init.run={trunk}", f"init.step={BEGIN}", f"init.sha256={sha256}", "init.state=everything")
    found = ranks(size).call(train, configured(corpus, *overrides, order, *init), corpus, BRANCH, branch)
    expected = ranks(size).call(train, configured(corpus, *overrides, order), corpus, BRANCH, alone)
    for own, other in zip(found, expected, strict=True):
        assert own.losses == other.losses[BEGIN:]
        assert own.norms == other.norms[BEGIN:]
        assert own.validation_losses == other.validation_losses
    weights, wanted = (read_weights(checkpoint_folder(folder, BRANCH)) for folder in (branch, alone))
    assert all(torch.equal(weights[key], wanted[key]) for key in wanted)
    # Another order, of a run that ends with the branch, is another run.
    own_order = ranks(size).call(train, configured(corpus, *overrides), corpus, BRANCH, tmp_path / "own_order")
    assert own_order[0].losses[BEGIN:] != expected[0].losses[BEGIN:]
