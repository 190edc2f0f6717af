"""One step: the host reads the device once, the norm is Megatron's, and numbers that are not finite change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.configs import tiny
from support.host_reads import reads_of_a_step
from support.poison import Poisoned, train_poisoned
from support.ranks import Ranks
from support.tiny_training import tiny_training

from efficientbench.config.schema import RunConfig

Pool = Callable[[int], Ranks]


@pytest.mark.parametrize(
    ("size", "overrides"),
    [
        (1, ["training.dtype=fp32"]),
        (1, ["training.dtype=bf16"]),
        (1, ["training.dtype=bf16", "training.gradient_clip=0"]),
        (1, ["training.dtype=bf16", "parallel.distributed_optimizer=false"]),
        (2, ["training.dtype=bf16", "parallel.dp=2"]),
        (2, ["parallel.pp=2"]),
        (2, ["parallel.tp=2", "parallel.sp=true"]),
    ],
)
def test_the_host_reads_once_and_after_the_update(size: int, overrides: list[str], ranks: Pool, corpus: Path) -> None:
    config = tiny("gqa_1.5B", f"data.cache={corpus.parent}", *overrides)
    for reads in ranks(size).call(reads_of_a_step, config, corpus):
        assert reads.before_update == []
        # What is read of the copy is the host's own.
        assert [read.split()[0] for read in reads.after_update].index("cpu") == 0
        assert sum(read.startswith("cpu ") for read in reads.after_update) == 1


def norms_beside_megatrons(config: RunConfig, prefix: Path, steps: int) -> list[tuple[float, float]]:
    """(ours, megatron's) of each step, before clipping."""
    norms = []
    with tiny_training(config, prefix, steps) as trainer:
        queued = trainer.queued
        assert queued is not None
        ours = queued.norm

        def norm_beside_megatrons() -> torch.Tensor:
            norm = ours()
            norms.append((norm.item(), trainer.optimizer.get_grad_norm()))
            return norm

        queued.norm = norm_beside_megatrons  # type: ignore[method-assign]
        for step in range(1, steps + 1):
            trainer.train_step(step)
    return norms


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("gqa_1.5B", ["parallel.tp=2", "parallel.sp=true"]),
        ("gqa_1.5B", ["parallel.pp=2", "training.dtype=bf16"]),
        ("gqa_1.5B", ["parallel.dp=2"]),
        ("gqa_1.5B", ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
        ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2"]),
        ("moe_1.5Bx8", ["parallel.ep=2", "parallel.dp=2", "parallel.distributed_optimizer=false"]),
    ],
)
def test_the_gradient_norm_matches_megatron(name: str, overrides: list[str], ranks: Pool, corpus: Path) -> None:
    config = tiny(name, f"data.cache={corpus.parent}", *overrides)
    outcomes = ranks(2).call(norms_beside_megatrons, config, corpus, 3)
    for norms in outcomes:
        assert norms == outcomes[0]
        for ours, megatrons in norms:
            assert ours == pytest.approx(megatrons, rel=1e-6)


STEPS = 5


@pytest.fixture
def trained(ranks: Pool, corpus: Path) -> Callable[..., list[Poisoned]]:
    """`trained(what, rank, at, *overrides)`: the outcome of two ranks."""

    def run(
        what: str, rank: int, at: tuple[int, ...], *overrides: str, name: str = "gqa_1.5B", waits: bool = False
    ) -> list[Poisoned]:
        config = tiny(name, f"data.cache={corpus.parent}", f"training.steps={STEPS}", *overrides)
        return ranks(2).call(train_poisoned, config, corpus, STEPS, what, rank, at, waits)

    return run


@pytest.mark.parametrize("what", ["loss", "gradients"])
def test_a_non_finite_step_stops_the_run_and_names_step_and_rank(
    trained: Callable[..., list[Poisoned]], what: str
) -> None:
    outcomes = trained(what, 1, (3,), "parallel.dp=2")
    message = "the loss and gradients are" if what == "loss" else "the gradients are"
    for outcome in outcomes:
        assert outcome.error is not None
        assert outcome.error.startswith(f"step 3: {message} not finite on rank 1; the weights are those of step 2 ")
        assert outcome.culprit == 1
        # Two steps were trained, and the third has changed nothing.
        assert outcome.unchanged == [False, False, True]


@pytest.mark.parametrize("what", ["loss", "gradients"])
@pytest.mark.parametrize("distributed", ["true", "false"])
def test_a_skipped_step_changes_nothing_on_any_rank(
    trained: Callable[..., list[Poisoned]], what: str, distributed: str
) -> None:
    layout = ["parallel.dp=2", f"parallel.distributed_optimizer={distributed}"]
    outcomes = trained(what, 1, (2, 4), *layout, "faults.skip_non_finite_steps=2")
    for outcome in outcomes:
        assert outcome.error is None
        assert outcome.skipped == outcome.unchanged == [False, True, False, True, False]
        assert outcome.messages[1] is not None
        assert outcome.messages[1].endswith("not finite on rank 1")
        assert outcome.losses[4] < 10


@pytest.mark.proof
@pytest.mark.parametrize("waits", [False, True])
def test_a_skipped_step_keeps_the_experts_shares_of_the_step_before(
    trained: Callable[..., list[Poisoned]], waits: bool
) -> None:
    settings = ["parallel.dp=2", "model.moe.auxiliary_over=global", "faults.skip_non_finite_steps=1"]
    for outcome in trained("loss", 1, (2,), *settings, name="moe_1.5Bx8", waits=waits):
        assert outcome.skipped == outcome.unchanged == [False, True, False, False, False]


def test_a_host_that_waits_for_the_device_skips_the_same_step(trained: Callable[..., list[Poisoned]]) -> None:
    for outcome in trained("gradients", 1, (2,), "parallel.dp=2", "faults.skip_non_finite_steps=1", waits=True):
        assert outcome.error is None
        assert outcome.skipped == outcome.unchanged == [False, True, False, False, False]


@pytest.mark.parametrize(("dtype", "rank"), [("fp32", 0), ("bf16", 1)])
def test_a_norm_that_overflows_from_finite_parts_changes_nothing(
    trained: Callable[..., list[Poisoned]], dtype: str, rank: int
) -> None:
    layout = ["parallel.pp=2", f"training.dtype={dtype}", "faults.skip_non_finite_steps=1"]
    for outcome in trained("norm", rank, (2, 4), *layout):
        assert outcome.messages[1] == "the norm of the gradients over all ranks is not finite (inf)"
        assert outcome.error is not None
        assert outcome.error.startswith(f"step 4: {outcome.messages[1]}; 1 such steps were skipped before; the weights")
        assert outcome.culprit == rank
        assert outcome.unchanged == [False, True, False, True]


def test_an_overflowing_norm_in_the_engines_update_names_the_rank_of_the_largest_part(
    trained: Callable[..., list[Poisoned]],
) -> None:
    for outcome in trained("norm", 1, (2,), "parallel.pp=2", waits=True):
        assert outcome.error == "step 2: the norm of the gradients over all ranks is not finite (inf)"
        assert outcome.culprit == 1


def test_one_more_skipped_step_than_allowed_stops_the_run(trained: Callable[..., list[Poisoned]]) -> None:
    for outcome in trained("gradients", 0, (2, 4), "parallel.dp=2", "faults.skip_non_finite_steps=1"):
        assert outcome.error is not None
        assert outcome.error.startswith("step 4: the gradients are not finite on rank 0; 1 such steps were skipped")
        assert outcome.unchanged[-1]


def test_a_stage_without_a_loss_stops_too(trained: Callable[..., list[Poisoned]]) -> None:
    # The last stage's loss is not finite; the first gets gradients from it that are not.
    for outcome in trained("loss", 1, (2,), "parallel.pp=2"):
        assert outcome.error is not None
        assert outcome.error.startswith("step 2: the gradients are not finite on rank 0 (and on ranks 1)")


def test_overflowing_fp16_gradients_are_handled_by_the_loss_scaler(trained: Callable[..., list[Poisoned]]) -> None:
    for outcome in trained("gradients", 1, (2,), "parallel.dp=2", "training.dtype=fp16"):
        assert outcome.error is None
        assert outcome.messages == [None] * STEPS
        assert outcome.skipped == [False, True, False, False, False]


@pytest.mark.parametrize("distributed", ["true", pytest.param("false", marks=pytest.mark.proof)])
def test_an_overflow_in_fp16_experts_changes_the_loss_scale_of_all_ranks(
    trained: Callable[..., list[Poisoned]], distributed: str
) -> None:
    layout = ["parallel.dp=2", "parallel.ep=2", f"parallel.distributed_optimizer={distributed}"]
    for outcome in trained("experts' gradients", 1, (2, 3), *layout, "training.dtype=fp16", name="moe_1.5Bx8"):
        assert outcome.skipped == [False, True, True, False, False]
        # The second overflow halves the scale, of the loss and of all that it is taken out of again.
        assert outcome.scales == [[scale] * 2 for scale in (2.0**16, 2.0**16, 2.0**15, 2.0**15, 2.0**15)]
