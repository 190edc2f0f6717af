"""The fit of the loss: outliers, and losses that follow no law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.simulated_studies import ALPHA, BETA, TARGET, TIE, A, B, E, plan, simulate

from efficientbench.basics.errors import MetricsError
from efficientbench.studies.ladder import Ladder
from efficientbench.studies.law import Law, Runs, fit_law, held_out, law_of


def _ladder() -> Ladder:
    return replace(plan(3), losses=simulate(TIE, 1).losses[0])


def test_an_outlier_is_named_and_left_out_of_the_law() -> None:
    ladder = _ladder()
    clean, none = law_of(ladder)
    assert not none.any()
    losses = ladder.losses.copy()
    losses[1, 4, 2] += 0.3
    found, outlying = law_of(replace(ladder, losses=losses))
    assert np.argwhere(outlying).tolist() == [[1, 4, 2]]
    assert found.at(*TARGET).mean() == pytest.approx(clean.at(*TARGET).mean(), abs=0.01)


def test_few_runs_have_no_outliers_since_a_law_goes_through_half_of_them_wherever_they_lie() -> None:
    for seed in range(5):
        few = replace(plan(3, seeds=1), losses=simulate(TIE, 1, 1, seed).losses[0])
        law, outlying = law_of(few)
        assert not outlying.any()
        assert law.at(*TARGET).mean() == pytest.approx(few.losses.min(), abs=0.6)


def test_a_lone_size_that_breaks_the_law_lies_outside_its_interval() -> None:
    ladder = _ladder()
    assert held_out(ladder).is_inside
    broken = ladder.losses.copy()
    broken[:, ladder.size_of == 2] += 0.15
    found = held_out(replace(ladder, losses=broken))
    assert found.size == "350M"
    assert not found.is_inside


def test_losses_that_rise_with_size_follow_no_law() -> None:
    ladder = _ladder()
    rising = replace(ladder, losses=6 - ladder.losses)
    with pytest.raises(MetricsError, match="follow no law"):
        fit_law(Runs.of(rising))


def test_too_few_losses_give_no_law() -> None:
    runs = Runs.of(_ladder())
    with pytest.raises(MetricsError, match="4 losses: the law of five numbers needs at least 5"):
        fit_law(runs.part(np.arange(len(runs.losses)) < 4))


def test_the_slope_is_the_change_of_the_law_with_compute() -> None:
    law = Law(np.array([[E, A, B, ALPHA, BETA]]), np.zeros((1, 2)))
    n, d = TARGET
    step = 1e-4
    change = law.at(n * np.exp(step / 2), d * np.exp(step / 2)) - law.at(n, d)
    assert law.slope(n, d) == pytest.approx(-change / step, rel=1e-3)
