"""Which row of a set is best: against scipy's tests, and how often alike rows are told apart."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from scipy import stats
from support.metrics_parts import make_record
from support.rival_runs import by_scipy, rival_runs
from support.synthetic_runs import gpu_run

from efficientbench.metrics.analysis.conditions import differences
from efficientbench.metrics.analysis.noise import IdenticalRuns, identical_runs
from efficientbench.metrics.analysis.repeats import group_repeats
from efficientbench.metrics.analysis.rivals import QUESTIONS, Rivals
from efficientbench.metrics.formulas.ratio import FIRST_SHARE, MIN_REPEATS, SIGNIFICANCE, Ratio
from efficientbench.metrics.records.record import RunRecord

SPEEDS = {"gqa": [100.0, 101.0, 99.5], "mqa": [110.0, 111.0, 109.3], "mla": [110.4, 109.0, 112.0]}


def of(records: list[RunRecord]) -> Rivals:
    groups = group_repeats(records)
    return Rivals(groups, IdenticalRuns(groups))


def found(rivals: Rivals, metric: str, first: int, second: int) -> Ratio:
    ratio = rivals.ratio(metric, first, second)
    assert ratio is not None
    return ratio


@pytest.mark.parametrize(("metric", "best"), [("tokens_per_s", "mla"), ("energy_j_per_token", "gqa")])
def test_standings_match_scipys_tests_of_all_pairs(metric: str, best: str) -> None:
    rivals = of(rival_runs(metric, SPEEDS))
    names = list(SPEEDS)
    pairs = list(itertools.permutations(range(3), 2))
    for first, second in pairs:
        low, high, p_value = by_scipy(SPEEDS, names[first], names[second])
        ratio = found(rivals, metric, first, second)
        means = [stats.gmean(SPEEDS[names[place]]) for place in (first, second)]
        assert ratio.ratio == pytest.approx(means[1] / means[0])
        assert (ratio.low, ratio.high) == pytest.approx((low, high))
        # The first figure, of which the p value holds for all three pairs.
        assert ratio.p_value == pytest.approx(min(1.0, p_value / FIRST_SHARE), abs=1e-6)
    standing = rivals.standing(metric)
    chosen = names.index(best)
    assert standing.best == chosen
    others = [place for place in range(3) if place != chosen]
    judged = {place: found(rivals, metric, place, chosen).p_value or 0.0 for place in others}
    assert set(standing.worse) == {place for place, p_value in judged.items() if p_value < SIGNIFICANCE}
    assert set(standing.level) == {place for place, p_value in judged.items() if p_value >= SIGNIFICANCE}
    # mqa and mla differ by less than their noise, and gqa from both by more.
    assert len(standing.level) == (1 if best == "mla" else 0)


def test_rows_of_few_runs_have_no_verdict_and_rows_without_a_figure_no_rank() -> None:
    records = [
        *rival_runs("tokens_per_s", {"gqa": [100.0], "mqa": [400.0, 401.0]}),
        make_record({"run": "bare_1.5B"}, "lost"),
    ]
    standing = of(records).standing("tokens_per_s")
    assert (standing.best, standing.open, standing.worse) == (1, {0: None}, {})
    assert standing.unavailable == {2: "bare_1.5B: lost"}
    nothing = of(records).standing("amu_gb")
    assert (nothing.best, len(nothing.unavailable)) == (None, 3)


def test_three_identical_runs_set_the_noise_of_single_runs() -> None:
    alike = [100.0, 100.4, 99.7]
    same = [
        record.model_copy(update={"run": f"{name}_1.5B", "variant": name, "seed": 1})
        for name, record in zip(("gqa", "rope", "dense"), rival_runs("tokens_per_s", {"gqa": alike}), strict=True)
    ]
    same = [record.model_copy(update={"config": same[0].config}) for record in same]
    [mqa] = rival_runs("tokens_per_s", {"mqa": [120.0]})
    groups = group_repeats([*same, mqa])
    compared = [groups[0], groups[3]]
    ratio = found(Rivals(compared, IdenticalRuns(groups)), "tokens_per_s", 0, 1)
    variance = np.log(alike).var(ddof=1)
    t = np.log(1.2) / np.sqrt(2 * variance)
    assert ratio.p_value == pytest.approx(2 * stats.t.sf(t, 2) / FIRST_SHARE)
    assert found(Rivals(compared, IdenticalRuns(compared)), "tokens_per_s", 0, 1).p_value is None


def test_identical_runs_of_a_set_match_those_searched_pair_by_pair() -> None:
    records = [gpu_run(variant, "1.5B", steps=20, seed=seed) for variant in ("gqa", "rope", "mqa") for seed in (1, 2)]
    records += [gpu_run("gqa", "1.5B", steps=20, seed=seed).model_copy(update={"dtype": "fp32"}) for seed in (1, 2, 3)]
    records += [gpu_run("mla", "1.5B", steps=20, seed=seed) for seed in (1, 2, 3)]
    groups = group_repeats(records)
    identical = IdenticalRuns(groups)
    compared = 0
    for first, second in itertools.permutations(groups, 2):
        assert list(identical.differences(first, second)) == differences(first.first, second.first)
        if identical.differences(first, second):
            continue
        others = [group for group in groups if group is not first and group is not second]
        expected = [each for each in identical_runs(first, second, others) if len(each) >= MIN_REPEATS]
        shown = [each for each in identical.beside(first, second) if len(each) >= MIN_REPEATS]
        assert _names(shown) == _names(expected)
        compared += len(expected)
    assert compared


def _names(sets: list[list[RunRecord]]) -> list[list[tuple[str, int]]]:
    return sorted(sorted((record.run, record.seed) for record in each) for each in sets)


def test_rows_under_different_conditions_are_not_compared() -> None:
    figures = {"gqa": [100.0] * 3, "mqa": [150.0] * 3}
    records = rival_runs("tokens_per_s", figures)
    slow = [
        record.model_copy(update={"micro_batch_size": 1}) if record.variant == "gqa" else record for record in records
    ]
    standing = of(slow).standing("tokens_per_s")
    assert standing.best == 1
    [difference] = standing.apart[0]
    assert difference.condition == "layout"
    assert not standing.worse


def test_a_loss_after_too_few_tokens_has_no_rank() -> None:
    few = {"tokens_per_parameter": 0.1}
    groups = group_repeats(rival_runs("validation_loss", {"gqa": [3.0]}, **few))
    rivals = Rivals(groups, IdenticalRuns(groups))
    assert rivals.mean("validation_loss", 0) is None
    why = rivals.standing("validation_loss").unavailable[0]
    assert "0.1 tokens per parameter" in why


def test_a_pair_whose_first_figure_differs_has_verdicts_on_the_others() -> None:
    """Else they have what is left of the level, by the spread of the pair's own runs."""
    others = {"mqa": [1.0, 1.001, 0.999], "mla": [1.03, 1.031, 1.029]}
    speeds = {"mqa": [100.0, 101.0, 99.5], "mla": [100.0, 100.9, 99.6]}
    told = []
    for factor in (1.0, 1.5):
        records = rival_runs("tokens_per_s", speeds)
        energies = [value for name in speeds for value in others[name]]
        given = [
            record.model_copy(
                update={
                    "energy_j_per_token": energy,
                    "tokens_per_s": (record.tokens_per_s or 0) * (factor if record.variant == "mla" else 1.0),
                }
            )
            for record, energy in zip(records, energies, strict=True)
        ]
        ratio = found(of(given), "energy_j_per_token", 0, 1)
        told.append(ratio.p_value)
    *_, welch = by_scipy(others, "mqa", "mla")
    assert told[0] == pytest.approx(welch / (1 - FIRST_SHARE))
    assert told[1] < told[0]


@pytest.mark.proof
def test_equal_models_are_claimed_to_differ_in_at_most_5_percent_of_sets() -> None:
    chance = random.Random(7)
    base = rival_runs("tokens_per_s", {name: [1.0] * 3 for name in ("a", "b", "c", "d", "e")})
    claims, sets = 0, 100
    for _ in range(sets):
        noisy = [
            record.model_copy(update={metric: 100 * (1 + 0.01 * chance.gauss(0, 1)) for metric in QUESTIONS})
            for record in base
        ]
        rivals = of(noisy)
        claims += any(rivals.standing(metric).worse for metric in QUESTIONS)
    # Of a hundred, more than 11 would have a chance of 1 % where each has 5 %.
    assert claims <= 11
