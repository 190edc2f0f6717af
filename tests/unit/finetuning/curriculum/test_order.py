"""Orders of whole runs: stages, exact mixtures, passes, paces and baselines."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from efficientbench.finetuning.curriculum.config import DEFAULT_STAGES, Stage
from efficientbench.finetuning.curriculum.order import (
    competence_order,
    order_hash,
    permuted,
    random_order,
    reversed_steps,
    run_steps,
    seen,
    shuffled,
    sorted_order,
    stage_steps,
    staged_order,
)

GSM8K = 7473
HASH = "0ab9dcad406bbe68b73f51a69d37e8bd92647204911897de176fde91f4c6ad30"
LEVELS = [number % 3 for number in range(GSM8K)]


def staged(steps: int, batch: int, seed: int = 42, levels: list[int] = LEVELS) -> np.ndarray:
    return staged_order(levels, steps, batch, seed, DEFAULT_STAGES)


@pytest.mark.parametrize(("samples", "epochs", "steps"), [(100, 1.1, 11), (70, 0.1, 1), (101, 1.0, 11), (100, 2.0, 20)])
def test_epochs_are_the_decimal_that_was_written(samples: int, epochs: float, steps: int) -> None:
    assert run_steps(samples, epochs, batch=10) == steps


@pytest.mark.parametrize(
    ("epochs", "batch", "steps", "stages"), [(3, 128, 176, [53, 71, 52]), (1, 64, 117, [36, 46, 35])]
)
def test_stages_follow_from_shares_of_the_steps(epochs: int, batch: int, steps: int, stages: list[int]) -> None:
    assert run_steps(GSM8K, epochs, batch) == steps
    assert stage_steps(steps, DEFAULT_STAGES) == stages


def test_a_stage_ends_at_the_exact_step_of_its_decimal_share() -> None:
    for steps in range(10, 400, 10):
        assert stage_steps(steps, DEFAULT_STAGES) == [steps * 3 // 10, steps * 4 // 10, steps * 3 // 10]


def test_the_mixture_of_each_stage_is_exact_to_a_sample() -> None:
    """The figures of 7,473 samples, 3 epochs and batches of 128, in which every sample is seen."""
    order = staged(176, 128)
    levels = np.array(LEVELS)[order]
    shares = [
        [round(float(np.mean(part == level)), 4) for level in range(3)]
        for part in np.split(levels, [53 * 128, 124 * 128])
    ]
    assert shares == [[0.8, 0.2, 0.0], [0.4, 0.4, 0.2], [0.25, 0.3501, 0.3999]]
    assert len(set(order.tolist())) == GSM8K


def test_the_mixture_of_each_step_is_exact_to_a_sample() -> None:
    levels = np.array(LEVELS)[staged(176, 128)].reshape(176, 128)
    for step, (own, stage) in enumerate(zip(levels, [0] * 53 + [1] * 71 + [2] * 52, strict=True)):
        for level, share in enumerate(DEFAULT_STAGES[stage].mixture):
            assert abs(np.sum(own == level) - share * 128) < 2, (step, level)


def test_a_level_repeats_only_after_all_its_samples_were_drawn() -> None:
    levels = [0] * 50 + [1] * 7 + [2] * 3
    order = staged(20, 8, levels=levels)
    for level, members in enumerate((range(50), range(50, 57), range(57, 60))):
        counts = Counter(number for number in order.tolist() if number in members)
        drawn = [counts[number] for number in members]
        assert max(drawn) - min(drawn) <= 1, (level, drawn)


def test_an_order_depends_only_on_its_arguments() -> None:
    """Neither the machine nor Python's version may change the order: a resumed run continues in it."""
    assert order_hash(staged(176, 128)) == HASH
    assert order_hash(staged(176, 128, seed=43)) != HASH


def test_positions_of_a_batch_do_not_choose_the_level() -> None:
    """With two levels in turn, every second rank would get nothing but long samples."""
    halves = (Stage(end=1, mixture=(0.5, 0.5)),)
    order = staged_order([0, 1] * 400, 100, 8, 42, halves)
    shares = (order % 2).reshape(100, 8).mean(axis=0)
    assert 0.3 < shares.min() <= shares.max() < 0.7


def test_competence_draws_from_the_share_of_platanios_formula() -> None:
    scores = np.random.default_rng(0).permutation(1000).astype(float)
    steps, batch = 50, 64
    order = competence_order(scores, steps, batch, 42)
    for step, own in enumerate(scores[order].reshape(steps, batch)):
        share = min(1, math.sqrt(step * (1 - 0.01**2) / steps + 0.01**2))
        assert own.max() <= math.ceil(share * 1000) - 1
        assert own.mean() == pytest.approx(share * 500, abs=share * 1000 * 5 / math.sqrt(12 * batch))


def test_the_sorted_order_runs_each_pass_from_easy_to_hard() -> None:
    scores = [float(number * 7 % 10) for number in range(100)]
    order = sorted_order(scores, 25, 10, 42)
    for begin, end in ((0, 100), (100, 200), (200, 250)):
        own = [scores[number] for number in order[begin:end]]
        assert own == sorted(own)
        assert len(set(order[begin:end].tolist())) == end - begin
    # The last pass is a part of the samples, but not the easiest ones.
    assert max(scores[number] for number in order[200:]) == 9


def test_shuffled_and_reversed_orders_draw_the_same_samples_as_often() -> None:
    order = staged(176, 128)
    mixed, backwards = shuffled(order, 42), reversed_steps(order, 128)
    assert Counter(mixed.tolist()) == Counter(backwards.tolist()) == Counter(order.tolist())
    assert (mixed != order).mean() > 0.9
    assert sorted(backwards[:128]) == sorted(order[-128:])
    share = (np.array(LEVELS)[mixed].reshape(176, 128) == 0).mean(axis=1)
    assert abs(share[:53].mean() - share[-52:].mean()) < 0.05, "the stages are gone"


def test_the_random_order_passes_over_all_samples() -> None:
    order = random_order(range(100), 25, 10, 42)
    assert Counter(order[:100].tolist()) == Counter(range(100))
    assert order[:100].tolist() != order[100:200].tolist()
    assert order.size == 250


def test_permuted_difficulties_are_the_same_values_for_other_samples() -> None:
    dealt = permuted(LEVELS, 42)
    assert Counter(dealt) == Counter(LEVELS)
    assert np.mean(np.array(dealt) == np.array(LEVELS)) == pytest.approx(1 / 3, abs=0.05)


def test_passes_and_coverage_count_what_an_order_draws() -> None:
    counted = seen(np.array([0, 1, 1, 5, 9]), np.array([0, 1, 2, 3]))
    assert (counted.drawn, counted.passes, counted.coverage) == (3, 0.75, 0.5)
