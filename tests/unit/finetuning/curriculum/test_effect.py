"""The effect of an order, with a learner for which order matters, and labels that mean nothing.

The learner is stochastic gradient descent on a linear model with a constant rate: what it saw last is what counts.
"""

from __future__ import annotations

import numpy as np
import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.finetuning.curriculum.choice import choose_order
from efficientbench.finetuning.curriculum.config import CurriculumConfig
from efficientbench.finetuning.curriculum.difficulty import Sample
from efficientbench.finetuning.curriculum.effect import Effect, LossCurve, effect, effects

NAMES = ("explain", "reasoning", "topology")
FEATURES, SAMPLES, STEPS, BATCH, RATE = 32, 900, 120, 8, 0.02
TRUTH = np.random.default_rng(1).normal(size=FEATURES)
NOISE = (3.0, 1.0, 0.0)
"""Of the targets of each level, in the planted case."""
TOKENS = (10, 20, 40)
"""Loss tokens of a sample of each level."""


def train(order: str, seed: int, levels: np.ndarray, noise: np.ndarray) -> LossCurve:
    """Train on the order that a curriculum chooses, and return the loss on held-out samples without noise."""
    data = np.random.default_rng(7)
    inputs = data.normal(size=(SAMPLES, FEATURES))
    targets = inputs @ TRUTH + noise * data.normal(size=SAMPLES)
    samples = [Sample(NAMES[level], f"line {number}") for number, level in enumerate(levels)]
    config = CurriculumConfig(use="required", order=order, seed=seed)
    chosen = choose_order(config, samples, STEPS, BATCH)
    weights = np.random.default_rng(seed).normal(size=FEATURES)
    points, tokens = [], 0
    for step, own in enumerate(chosen.order.reshape(STEPS, BATCH), 1):
        residuals = inputs[own] @ weights - targets[own]
        weights -= RATE * inputs[own].T @ residuals / BATCH * 2
        tokens += sum(TOKENS[level] for level in levels[own])
        if step % 10 == 0:
            points.append((tokens, float(np.sum((weights - TRUTH) ** 2))))
    return LossCurve(seed, tuple(points))


def compare(levels: np.ndarray, noise: np.ndarray, orders: tuple[str, ...], seeds: range) -> dict[str, Effect]:
    curves = {order: [train(order, seed, levels, noise) for seed in seeds] for order in orders}
    return effects(curves)


def test_the_effect_of_an_order_is_detected_and_its_reverse_is_worse() -> None:
    """Noisy samples come first and clean ones last; the same samples shuffled have noise to the end."""
    levels = np.arange(SAMPLES) % 3
    noise = np.array(NOISE)[levels]
    found = compare(levels, noise, ("paced", "shuffled", "random_levels", "reversed"), range(16))
    assert found["order"].verdict.endswith("lower")
    assert found["order"].high < 0
    assert found["difficulties"].verdict.endswith("lower")
    assert found["reversal"].verdict.endswith("higher")


# Binomial at 5 %: 3 of 8 have a chance of 0.6 %, 8 of 60 one of 1.3 %.
@pytest.mark.parametrize(("trials", "most"), [(8, 2), pytest.param(60, 7, marks=pytest.mark.proof)])
def test_random_labels_are_rarely_claimed_to_help(trials: int, most: int) -> None:
    """Where labels are dealt at random, claims are as rare as their p value says."""
    verdicts = []
    for trial in range(trials):
        levels = np.random.default_rng(trial).integers(0, 3, SAMPLES)
        found = compare(levels, np.ones(SAMPLES), ("paced", "shuffled"), range(100 * trial, 100 * trial + 5))
        verdicts.append(found["order"].verdict)
    claims = [verdict for verdict in verdicts if verdict != "no difference measurable"]
    assert len(claims) <= most, claims


def test_losses_are_compared_at_equal_loss_tokens() -> None:
    """Both learn the same from a token; the second has seen twice as many at its end."""
    short = [LossCurve(seed, ((0, 4.0 + seed), (100, 3.0 + seed))) for seed in range(5)]
    long = [LossCurve(seed, ((0, 4.0 + seed), (200, 2.0 + seed))) for seed in range(5)]
    found = effect(short, long)
    assert found.loss_tokens == 100
    assert found.difference == pytest.approx(0)
    assert found.verdict == "no difference measurable"


def test_pairing_by_seed_removes_the_effect_of_the_seed() -> None:
    """Seeds differ by 1 nat and orders by 0.01: unpaired, nothing would be seen."""
    change = (0.010, 0.011, 0.009, 0.010, 0.012)
    first = [LossCurve(seed, ((10, seed + change[seed]),)) for seed in range(5)]
    second = [LossCurve(seed, ((10, float(seed)),)) for seed in range(5)]
    found = effect(first, second)
    # Student's t for 4 degrees of freedom: 2.7764 standard errors.
    margin = 2.776445 * np.std(change, ddof=1) / np.sqrt(5)
    assert (found.low, found.high) == pytest.approx((0.0104 - margin, 0.0104 + margin))
    assert found.verdict == "0.0104 nats higher"


def test_few_or_unpaired_seeds_give_no_verdict() -> None:
    curve = [LossCurve(seed, ((10, 1.0 + seed),)) for seed in range(4)]
    assert effect(curve, curve).verdict == "no verdict: 4 seeds, 5 are needed"
    with pytest.raises(ConfigError, match="seeds 3 ran on one side only"):
        effect(curve, curve[:3])
    with pytest.raises(ConfigError, match="seeds 0 ran more than once with one order"):
        effect([*curve, curve[0]], curve)
    with pytest.raises(ConfigError, match="1 pairs"):
        effect(curve[:1], curve[:1])


def test_a_loss_before_the_first_validation_is_refused() -> None:
    curve = LossCurve(3, ((100, 4.0), (200, 3.0)))
    assert (curve.at(100), curve.at(150)) == (4.0, 3.5)
    with pytest.raises(ConfigError, match="seed 3 has its first held-out loss after 100 loss tokens"):
        curve.at(99)
