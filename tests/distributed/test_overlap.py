"""Gradients are sent during the backward pass, weights during the forward pass, and nobody reads stale ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.configs import tiny
from support.ranks import Ranks
from support.tiny_training import tiny_training

from efficientbench.config.schema import RunConfig

LAYOUTS = {
    "DP 2": (2, ["parallel.dp=2"]),
    "DP 2, plain optimizer": (2, ["parallel.dp=2", "parallel.distributed_optimizer=false"]),
    # The output projection's table has a bucket of its own.
    "DP 2, two tables": (2, ["parallel.dp=2", "model.tied=false"]),
    "PP 2 x DP 2": (4, ["parallel.dp=2", "parallel.pp=2"]),
}
CASES = [pytest.param(name, marks=pytest.mark.proof if size > 2 else ()) for name, (size, _) in LAYOUTS.items()]


def sent_early(config: RunConfig, prefix: Path) -> int:
    """How many buckets of the first stage were on their way in the second step when its last one was complete."""
    with tiny_training(config, prefix, 2) as trainer:
        groups = trainer.stages[0].bucket_groups
        last, underway = groups[-1].start_grad_sync, []

        def start(force_all_reduce: bool | None = False) -> None:
            underway.append(sum(group.grad_reduce_handle is not None for group in groups))
            last(force_all_reduce=force_all_reduce)

        groups[-1].start_grad_sync = start
        for step in (1, 2):
            trainer.train_step(step)
    assert len(underway) == 2
    return underway[1]


def times_awaited(config: RunConfig, prefix: Path) -> set[int]:
    """How often in a step the buckets of this rank's stages wait for the gradient of a weight."""
    with tiny_training(config, prefix, 2) as trainer:
        for step in (1, 2):
            trainer.train_step(step)
        groups = [group for stage in trainer.stages for group in stage.bucket_groups]
        return {count for group in groups for count in group.golden_per_param_grad_ready_counts.values()}


def weights_after(config: RunConfig, prefix: Path, steps: int) -> dict[str, torch.Tensor]:
    """The weights of this rank's stage where training was asked to stop, which no validation follows."""
    asked = itertools.count(1)
    with tiny_training(config, prefix, steps + 1) as trainer:
        assert trainer.train(lambda: next(asked) == steps)
        return weights_of(trainer.stages[0].module)


def weights_in_evaluation(config: RunConfig, prefix: Path) -> dict[str, torch.Tensor]:
    """The weights that an evaluation after the first step finds on this rank."""
    from efficientbench.worker.listeners.scores import evaluating

    with tiny_training(config, prefix, 2) as trainer:
        trainer.train_step(1)
        with evaluating(trainer) as model:
            return weights_of(model)


def weights_of(stage: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in stage.named_parameters()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


@pytest.mark.parametrize("layout", CASES)
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_buckets_are_sent_before_the_backward_pass_ends(
    layout: str, overlap: str, ranks: Callable[[int], Ranks], corpus: Path
) -> None:
    size, words = LAYOUTS[layout]
    config = tiny("gqa_1.5B", "training.global_batch_size=8", *words, f"parallel.overlap={overlap}")
    found = ranks(size).call(sent_early, config, corpus)
    assert (found[0] > 0) == (overlap == "true")


@pytest.mark.proof
def test_every_stage_sends_gradients_only_after_the_last_micro_batch(
    ranks: Callable[[int], Ranks], corpus: Path
) -> None:
    """A stage that counted all micro-batches would be right only while each step has as many as the first."""
    interleaved = ("parallel.pp=2", "parallel.vpp=2", "model.layers=4")
    assert ranks(4).call(times_awaited, tiny("gqa_1.5B", "parallel.dp=2", *interleaved), corpus) == [{1}] * 4


@pytest.mark.parametrize("layout", CASES)
def test_replicas_have_the_same_weights_after_training(
    layout: str, ranks: Callable[[int], Ranks], corpus: Path
) -> None:
    """Each rank updates its shard alone: without a last wait it would keep the others' of a step before."""
    size, words = LAYOUTS[layout]
    found = ranks(size).call(weights_after, tiny("gqa_1.5B", *words), corpus, 3)
    # Neighbouring ranks are replicas of a stage.
    for one, other in zip(found[::2], found[1::2], strict=True):
        assert_same(one, other)


def test_replicas_are_evaluated_with_the_same_weights(ranks: Callable[[int], Ranks], corpus: Path) -> None:
    """Modules that are called would wait for theirs, but not those of a replica that has nothing to evaluate."""
    assert_same(*ranks(2).call(weights_in_evaluation, tiny("gqa_1.5B", "parallel.dp=2"), corpus))
