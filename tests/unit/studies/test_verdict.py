"""The verdict: what is named, what is level, who leaves the Pareto front, and where lines cross."""

from __future__ import annotations

import math

import numpy as np
import pytest

from efficientbench.studies.effects import Effects
from efficientbench.studies.law import PUBLISHED, Law
from efficientbench.studies.verdict import MOST, Costs, Interval, Verdict, crossings, judge

TARGET = 1.5e9, 30e9
SLOPE = float(PUBLISHED.slope(*TARGET)[0])
NO_COSTS = Costs({}, {})


def _effects(offsets: dict[str, float], deviation: float, growth: dict[str, float] | None = None) -> Effects:
    """Return effects whose e are normal around offsets, and whose a are given."""
    draws, count = 4000, len(offsets)
    coefficients = np.zeros((draws, count, 3))
    coefficients[:, :, 0] = np.random.default_rng(0).normal(list(offsets.values()), deviation, (draws, count))
    coefficients[:, :, 1] = [(growth or {}).get(name, 0.0) for name in offsets]
    exponents = np.tile([0.34, 0.36], (draws, 1))
    return Effects(tuple(offsets), coefficients, exponents, np.zeros((draws, count)), (130e6, 2.6e9))


def _judge(offsets: dict[str, float], deviation: float = 0.002, costs: Costs = NO_COSTS) -> Verdict:
    return judge(_effects(offsets, deviation), PUBLISHED, TARGET, costs)


def test_the_published_slope_turns_a_hundredth_of_a_nat_into_nine_percent_of_compute() -> None:
    assert pytest.approx(0.110, abs=0.001) == SLOPE
    assert math.expm1(0.01 / SLOPE) == pytest.approx(0.09, abs=0.01)


def test_ratios_have_a_geometric_mean_so_that_a_half_and_a_double_are_even() -> None:
    even = Interval.of_ratios(np.tile([0.5, 2.0], 100))
    assert (even.mean, even.low, even.high) == (pytest.approx(1), pytest.approx(0.5), pytest.approx(2))


def test_a_lead_of_many_deviations_is_named_and_a_tie_is_not() -> None:
    clear = _judge({"gqa": 0.0, "mla": -0.02, "nsa": 0.005})
    assert clear.best.named == "mla"
    assert clear.best.possible == ("mla",)
    tie = _judge({"gqa": 0.0, "mla": 0.0, "nsa": 0.03})
    assert tie.best.named is None
    assert sorted(tie.best.possible) == ["gqa", "mla"]
    assert tie.level == (("gqa", "mla"),)
    assert clear.standings[1].difference is not None
    assert clear.standings[1].difference.mean == pytest.approx(-0.02, abs=2e-4)
    assert clear.standings[0].difference is None


def test_a_noisy_tie_is_not_called_level() -> None:
    assert _judge({"gqa": 0.0, "mla": 0.0}, deviation=0.01).level == ()


def test_a_better_loss_saves_compute_and_a_dearer_variant_may_lose_it_again() -> None:
    losses = {"gqa": 0.0, "mla": -0.02}
    cheap = _judge(losses, costs=Costs({"s": np.array([100.0, 100.0])}, {}))
    factor = math.exp(-0.02 / SLOPE)
    assert cheap.standings[1].to_baseline["s"].mean == pytest.approx(factor, rel=0.01)
    assert cheap.cheapest["s"].named == "mla"
    dear = _judge(losses, costs=Costs({"s": np.array([100.0, 150.0])}, {}))
    assert dear.best.named == "mla"
    assert dear.cheapest["s"].named == "gqa"


def test_a_variant_leaves_the_front_only_where_another_is_better_in_all() -> None:
    losses = {"gqa": 0.0, "mla": -0.02, "nsa": 0.02}
    training = {"s": np.array([100.0, 100.0, 100.0])}
    fronts = [each.on_front for each in _judge(losses, costs=Costs(training, {})).standings]
    assert fronts == [False, True, False]
    serving = Costs(training, {"J": np.array([2.0, 3.0, 1.0])})
    assert [each.on_front for each in _judge(losses, costs=serving).standings] == [True, True, True]
    unsure = _judge({"gqa": 0.0, "mla": 0.0}, costs=Costs({"s": np.array([100.0, 101.0])}, {}))
    assert [each.on_front for each in unsure.standings] == [True, None]


def test_a_cost_with_an_interval_of_its_own_is_judged_by_its_draws() -> None:
    cost = np.random.default_rng(1).normal([100.0, 98.0], 5.0, (4000, 2))
    verdict = _judge({"gqa": 0.0, "mla": 0.0}, deviation=1e-6, costs=Costs({"s": cost}, {}))
    assert verdict.cheapest["s"].named is None


def test_lines_cross_where_the_trend_outgrows_the_offset() -> None:
    # 0.01 (N / N0)^-0.34 falls to 0.005 at N0 2^(1 / 0.34).
    effects = _effects({"gqa": 0.0, "mla": -0.005}, 1e-9, {"mla": 0.01})
    found = crossings(effects, "gqa", "mla", 50e6, TARGET)
    assert found == [pytest.approx(130e6 * 2 ** (1 / 0.34), rel=0.01)]
    assert crossings(effects, "gqa", "gqa", 50e6, TARGET) == []


def test_a_nearly_flat_law_gives_finite_costs() -> None:
    """A loss that hardly falls with compute makes a lead worth more than numbers hold."""
    flat = Law(np.array([[5.0, 1e-6, 1e-6, 0.34, 0.36]]), np.zeros((1, 2)))
    costs = Costs({"s": np.array([100.0, 100.0])}, {})
    worse = judge(_effects({"gqa": 0.0, "mla": 0.05}, 0.002), flat, TARGET, costs).standings[1].to_baseline["s"]
    assert worse.mean == pytest.approx(MOST)
    assert worse.high == pytest.approx(MOST)
