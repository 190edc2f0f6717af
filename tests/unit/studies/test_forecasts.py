"""What a plan is said to see, and the chance that further runs end with a name, against what then happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.simulated_studies import FLAWS, LAWS, SIZES, STANDARD_ERROR, TARGET, Truth, outcome, plan, simulate

from efficientbench.studies.effects import Fit, Prior
from efficientbench.studies.law import PUBLISHED
from efficientbench.studies.simulate import NAMED, Extension, precision, shares_best

SEEDS = 12
MORE_SIZES = SIZES | {"700M": 700e6}


def test_the_forecast_gap_grows_with_the_noise_and_falls_with_sizes() -> None:
    three = precision(plan(2), TARGET)
    larger = precision(plan(2, sizes=MORE_SIZES), TARGET)
    noisy = precision(plan(2), TARGET, noise=0.005)
    assert larger.gap < three.gap < noisy.gap
    assert larger.deviation < three.deviation < noisy.deviation
    # As in docs/study.md, What goes wrong.
    assert three.deviation == pytest.approx(0.0033, abs=5e-5)
    assert precision(plan(2, seeds=SEEDS), TARGET).deviation == pytest.approx(0.0026, abs=5e-5)
    assert three.compute == pytest.approx(np.expm1(three.gap / PUBLISHED.slope(*TARGET)[0]))


@pytest.mark.proof
def test_a_gap_that_is_forecast_to_be_named_in_80_percent_is_named_about_as_often() -> None:
    gap = precision(plan(2), TARGET, noise=LAWS.branch).gap
    found = outcome(simulate(replace(LAWS, variants=2, gap=gap / STANDARD_ERROR), 100))
    # The forecast's ladders may miss the law by a misfit in each size; these follow it.
    assert 75 <= found.named <= 100


def _named(fit: Fit, losses: np.ndarray) -> np.ndarray:
    """Return [studies]: whether a best variant is named."""
    every = fit.draw_each(fit.values(losses))
    return np.array([shares_best(effects.at(*TARGET)).max() >= NAMED for effects in every])


def _predicted_and_real(truth: Truth, extra_size: bool, studies: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for the studies that are undecided before an extension, the chance of a name and whether it came."""
    before = simulate(truth, studies)
    after = simulate(truth, studies, sizes=MORE_SIZES) if extra_size else simulate(truth, studies, SEEDS)
    assert after.losses[:, :, :9, :3] == pytest.approx(before.losses, abs=1e-9)
    undecided = ~_named(Fit(before.plan), before.losses)
    extension = Extension(before.plan, after.plan, Prior())
    predicted = [extension.chance(losses, TARGET) for losses in before.losses[undecided]]
    real = _named(Fit(after.plan), after.losses[undecided])
    return np.array(predicted), real


@pytest.mark.proof
@pytest.mark.parametrize("extra_size", [False, True], ids=["four times the seeds", "one size more"])
def test_undecided_studies_get_a_name_after_an_extension_as_often_as_predicted(extra_size: bool) -> None:
    # Of each kind alone, the prediction errs as its prior does: too low where laws hold exactly, too high at ties.
    kinds = (LAWS, replace(LAWS, gap=1), replace(FLAWS["one size off"], name="one size off", gap=2))
    predicted, real = (
        np.concatenate(each)
        for each in zip(*(_predicted_and_real(kind, extra_size, 60) for kind in kinds), strict=True)
    )
    assert len(predicted) >= 120
    assert abs(predicted.mean() - real.mean()) <= 0.15
    likely = predicted >= np.quantile(predicted, 2 / 3)
    assert real[likely].mean() > real[~likely].mean()


def test_the_chance_of_a_name_is_small_at_a_tie_and_large_just_below_a_name() -> None:
    before = plan(2)
    extension = Extension(before, plan(2, sizes=MORE_SIZES), Prior())
    # All that differs is e: a tie, and a gap whose probability of being best is just below NAMED.
    tie = np.zeros(before.losses.shape)
    noise = simulate(replace(LAWS, variants=2, apart=0.0), 1).losses[0]
    leads = [tie + noise + np.array([-gap, 0.0])[:, None, None] for gap in (0.0, 0.005)]
    chances = [extension.chance(each, TARGET) for each in leads]
    assert chances[0] < 0.2 < chances[1]
