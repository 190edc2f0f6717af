"""A loss or gradients that are not finite on one rank: all ranks stop or leave the step out, and name that rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.configs import tiny
from support.poison import Poisoned, train_poisoned
from support.ranks import Ranks

STEPS = 5
Pool = Callable[[int], Ranks]


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
def test_the_run_stops_and_names_step_and_rank(trained: Callable[..., list[Poisoned]], what: str) -> None:
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
def test_a_step_that_is_left_out_changes_nothing_on_any_rank(
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


def test_a_host_that_waits_for_the_device_leaves_the_same_step_out(trained: Callable[..., list[Poisoned]]) -> None:
    for outcome in trained("gradients", 1, (2,), "parallel.dp=2", "faults.skip_non_finite_steps=1", waits=True):
        assert outcome.error is None
        assert outcome.skipped == outcome.unchanged == [False, True, False, False, False]


@pytest.mark.parametrize(("dtype", "rank"), [("fp32", 0), ("bf16", 1)])
def test_a_norm_that_overflows_though_each_part_is_finite_changes_nothing(
    trained: Callable[..., list[Poisoned]], dtype: str, rank: int
) -> None:
    layout = ["parallel.pp=2", f"training.dtype={dtype}", "faults.skip_non_finite_steps=1"]
    for outcome in trained("norm", rank, (2, 4), *layout):
        assert outcome.messages[1] == "the norm of the gradients over all ranks is not finite (inf)"
        assert outcome.error is not None
        assert outcome.error.startswith(
            f"step 4: {outcome.messages[1]}; 1 such steps were left out before; the weights"
        )
        assert outcome.culprit == rank
        assert outcome.unchanged == [False, True, False, True]


def test_a_norm_that_overflows_in_the_engines_own_update_names_the_rank_of_the_largest_part(
    trained: Callable[..., list[Poisoned]],
) -> None:
    for outcome in trained("norm", 1, (2,), "parallel.pp=2", waits=True):
        assert outcome.error == "step 2: the norm of the gradients over all ranks is not finite (inf)"
        assert outcome.culprit == 1


def test_one_step_more_than_allowed_stops(trained: Callable[..., list[Poisoned]]) -> None:
    for outcome in trained("gradients", 0, (2, 4), "parallel.dp=2", "faults.skip_non_finite_steps=1"):
        assert outcome.error is not None
        assert outcome.error.startswith("step 4: the gradients are not finite on rank 0; 1 such steps were left out")
        assert outcome.unchanged[-1]


def test_a_stage_that_has_no_loss_stops_too(trained: Callable[..., list[Poisoned]]) -> None:
    # The last stage's loss is not finite; the first gets gradients from it that are not.
    for outcome in trained("loss", 1, (2,), "parallel.pp=2"):
        assert outcome.error is not None
        assert outcome.error.startswith("step 2: the gradients are not finite on rank 0 (and on ranks 1)")


def test_fp16_gradients_that_overflow_stay_the_loss_scalers_matter(trained: Callable[..., list[Poisoned]]) -> None:
    for outcome in trained("gradients", 1, (2,), "parallel.dp=2", "training.dtype=fp16"):
        assert outcome.error is None
        assert outcome.messages == [None] * STEPS
        assert outcome.skipped == [False, True, False, False, False]


@pytest.mark.parametrize("distributed", ["true", "false"])
def test_fp16_experts_that_overflow_change_the_scale_of_all(
    trained: Callable[..., list[Poisoned]], distributed: str
) -> None:
    layout = ["parallel.dp=2", "parallel.ep=2", f"parallel.distributed_optimizer={distributed}"]
    for outcome in trained("experts' gradients", 1, (2, 3), *layout, "training.dtype=fp16", name="moe_1.5Bx8"):
        assert outcome.skipped == [False, True, True, False, False]
        # The second overflow halves the scale, of the loss and of all that it is taken out of again.
        assert outcome.scales == [[scale] * 2 for scale in (2.0**16, 2.0**16, 2.0**15, 2.0**15, 2.0**15)]
