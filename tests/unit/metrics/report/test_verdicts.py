"""What a comparison claims: its tests against SciPy, and its claims between runs that differ in nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.metrics_parts import make_record, printed
from support.proofs import proofs_but

from efficientbench.metrics.analysis.compare import Comparison, compare
from efficientbench.metrics.analysis.judging import Judge
from efficientbench.metrics.analysis.noise import aa_floor, identical_runs, text_noise
from efficientbench.metrics.analysis.repeats import Group, combine, group_repeats
from efficientbench.metrics.formulas.ratio import (
    FIRST_SHARE,
    NO_DIFFERENCE,
    POWER,
    SIGNIFICANCE,
    Estimate,
    Ratio,
    Side,
    corrected,
    holm,
    make_ratio,
    repeats_to_tell,
)
from efficientbench.metrics.formulas.student import half_interval_95, range_p_value, t_p_value, t_quantile_95
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.comparison import NO_VERDICT, print_comparison
from efficientbench.metrics.report.headline import FEW_RUNS_NOTE, notes, speed_only

BASE = {
    **{"al_s": 0.1, "al_s_ci_low": 0.0999, "al_s_ci_high": 0.1001, "tokens_per_s": 1e4, "al_s_p50": 0.1},
    **{"amu_gb": 2.0, "pcu": 0.9, "aec_w": 100.0, "energy_j_per_token": 0.01, "energy_scope": "gpu"},
    **{"peak_memory_device_bytes": 10**9, "validation_loss": 4.0, "validation_loss_se": 0.001, "tokens": 10**6},
}


def run_of(seed: int, attention: str = "gqa", name: str | None = None, **figures: Any) -> RunRecord:
    config = {"variant": name or attention, "model": {"attention": {"kind": attention}}, "training": {"seed": seed}}
    names = {"run": f"{name or attention}_1.5B", "variant": name or attention, "seed": seed, "config": config}
    return make_record({**BASE, **names, "steps_measured": 100, **figures})


def runs(metric: str, values: Any, attention: str = "gqa", **further: Any) -> Group:
    """Return repeats of one model by one of their figures."""
    (group,) = group_repeats(
        run_of(seed, attention, **{metric: float(value)}, **further) for seed, value in enumerate(values)
    )
    return group


def verdict(comparison: Comparison, metric: str) -> str:
    (found,) = [ratio for ratio in comparison.ratios if ratio.metric == metric]
    return found.verdict


@given(st.floats(0, 200), st.floats(1, 1e6))
def test_students_distribution_matches_scipy(t: float, degrees: float) -> None:
    assert t_p_value(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-8, abs=1e-300)
    assert t_quantile_95(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-8)


@pytest.mark.parametrize("rows", [2, 3, 4, 21])
@pytest.mark.parametrize("degrees", [2, 4.4, 8, 40])
def test_tukeys_range_matches_scipy(rows: int, degrees: float) -> None:
    for t in (0.2, 1.3, 2.6, 4.0, 9.0):
        expected = stats.studentized_range.sf(math.sqrt(2) * t, rows, degrees)
        assert range_p_value(t, rows, degrees) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("first", "second"), [(3, 3), (3, 5), (12, 4)])
def test_repeats_are_compared_as_by_scipys_welch_test(first: int, second: int) -> None:
    chance = np.random.default_rng(first * second)
    logs = chance.normal(0, 0.02, first), chance.normal(0.03, 0.05, second)
    ratio = make_ratio("al_s", *(Side.of(np.exp(each).tolist()) for each in logs))
    oracle = stats.ttest_ind(logs[1], logs[0], equal_var=False)
    interval = oracle.confidence_interval(0.95)
    assert ratio.p_value == pytest.approx(oracle.pvalue, rel=1e-7)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)), rel=1e-6)
    assert math.log(ratio.ratio) == pytest.approx(np.mean(logs[1]) - np.mean(logs[0]))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_correction_matches_holms(p_values: list[float]) -> None:
    adjusted = holm({str(place): p_value for place, p_value in enumerate(p_values)}, {})
    # Holm's is the closure of Bonferroni's: a figure's p value is the largest of all sets with it (Marcus et al. 1976).
    for place in range(len(p_values)):
        sets = [
            [p_values[other] for other in chosen]
            for size in range(1, len(p_values) + 1)
            for chosen in itertools.combinations(range(len(p_values)), size)
            if place in chosen
        ]
        oracle = max(min(len(each) * min(each), 1.0) for each in sets)
        assert adjusted[str(place)] == pytest.approx(oracle)


@given(st.lists(st.tuples(st.floats(0, 0.2), st.sampled_from("abc")), min_size=1, max_size=7), st.floats(0.001, 0.2))
def test_holm_counts_equivalent_figures_once(figures: list[tuple[float, str]], level: float) -> None:
    p_values = {str(place): p_value for place, (p_value, _) in enumerate(figures)}
    family = {str(place): name for place, (_, name) in enumerate(figures)}
    claimed: set[str] = set()
    while True:
        left = {family[name] for name in p_values if name not in claimed}
        more = {name for name, p_value in p_values.items() if p_value * len(left) < level} - claimed
        if not more:
            break
        claimed |= more
    assert {name for name, p_value in holm(p_values, family).items() if p_value < level} == claimed


@given(st.lists(st.floats(0, 0.12), min_size=2, max_size=5))
def test_the_first_figure_has_nearly_the_whole_level_and_passes_it_on(p_values: list[float]) -> None:
    names = [str(place) for place in range(len(p_values))]
    ratios = [_judged(name, p_value) for name, p_value in zip(names, p_values, strict=True)]
    found = corrected(ratios, {}, ("absent", *names))
    claimed = {ratio.metric for ratio in found if ratio.p_value is not None and ratio.p_value < SIGNIFICANCE}
    # Bretz et al. (2009) by their own steps: claim a figure, hand its level on, go on.
    first = p_values[0] < FIRST_SHARE * SIGNIFICANCE
    level, left = SIGNIFICANCE if first else (1 - FIRST_SHARE) * SIGNIFICANCE, dict(zip(names, p_values, strict=True))
    expected = {names[0]} if first else set()
    del left[names[0]]
    while left and min(left.values()) < level / len(left):
        least = min(left, key=left.__getitem__)
        expected.add(least)
        del left[least]
    assert claimed == expected


def _judged(name: str, p_value: float) -> Ratio:
    return Ratio(name, 1.0, 1.1, 1.1, None, None, "", (3, 3), None, p_value, p_value)


@pytest.mark.parametrize(("apart", "spread"), [(1.02, 0.01), (1.02, 0.015), (1.05, 0.02), (1.01, 0.02)])
def test_repeats_that_tell_a_difference_have_the_power_of_scipys_t(apart: float, spread: float) -> None:
    def power(runs: int) -> float:
        degrees, moved = 2 * (runs - 1), math.log(apart) / spread * math.sqrt(runs / 2)
        edge = stats.t.isf(FIRST_SHARE * SIGNIFICANCE / 2, degrees)
        return float(stats.nct.sf(edge, degrees, moved) + stats.nct.cdf(-edge, degrees, moved))

    runs = repeats_to_tell(apart, spread)
    assert runs is not None
    assert power(runs - 1) < POWER <= power(runs)
    assert repeats_to_tell(1.0001, spread) is None


def test_equivalent_figures_of_runs_count_once_in_the_correction() -> None:
    figures: dict[str, Any] = {"tokens_per_s": None, "amu_gb": None, "pcu": None, "aec_w": None, "al_s_p50": None}
    figures |= {"energy_j_per_token": None, "peak_memory_device_bytes": None, "validation_loss": None}
    slower = [0.100, 0.101, 0.102], [0.101, 0.102, 0.103]
    alone = compare(runs("al_s", slower[0], **figures), runs("al_s", slower[1], "mla", **figures))
    assert [ratio.metric for ratio in alone.ratios] == ["al_s"]
    groups = [
        Group(
            tuple(
                record.model_copy(update={"tokens_per_s": 1e3 / (record.al_s or 1), "mfu": 0.04 / (record.al_s or 1)})
                for record in runs("al_s", values, attention, **figures).records
            )
        )
        for values, attention in zip(slower, ("gqa", "mla"), strict=True)
    ]
    thrice = compare(*groups)
    assert {ratio.metric for ratio in thrice.ratios} == {"al_s", "tokens_per_s", "mfu"}
    assert [ratio.p_value for ratio in thrice.ratios] == pytest.approx([alone.ratios[0].p_value] * 3)
    # A form with another constant is another claim: twice as many FLOPs are another MFU.
    half = Group(tuple(record.model_copy(update={"mfu": 2 * (record.mfu or 0)}) for record in groups[1].records))
    of_half = {ratio.metric: ratio for ratio in compare(groups[0], half).ratios}
    assert of_half["mfu"].measurable
    assert of_half["al_s"].p_value == alone.ratios[0].p_value


def test_single_runs_are_compared_without_a_verdict() -> None:
    comparison = compare(runs("al_s", [0.1]), runs("al_s", [0.2], "mla"))
    assert {ratio.verdict for ratio in comparison.ratios} == {"no verdict: 1 and 1 runs"}
    assert comparison.speed_only is None
    text = printed(print_comparison, comparison, width=240)
    for shown in (NO_VERDICT, "AL, s/step         0.1   0.2 2.000  n/a no verdict: 1 and 1 runs"):
        assert shown in text
    assert "Verdicts:" not in text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_three_repeats_of_each_side_make_a_verdict(count: int) -> None:
    slow = runs("al_s", [0.2, 0.201, 0.202], "mla")
    comparison = compare(runs("al_s", [0.1, 0.101, 0.102][:count]), slow)
    expected = "99.0% more" if count == 3 else f"no verdict: {count} and 3 runs"
    assert verdict(comparison, "al_s") == expected


def test_identical_runs_beside_single_ones_make_a_verdict() -> None:
    floor = [run_of(seed, name=name, al_s=al_s) for seed, name, al_s in zip(
        (1, 1, 2, 3), ("rope", "dense", "dense", "dense"), (0.100, 0.101, 0.102, 0.103), strict=True)]  # fmt: skip
    neighbours = group_repeats(floor)
    logs = np.log([0.100, 0.101, 0.102, 0.103])
    estimate = aa_floor([floor], lambda record: record.al_s)
    assert estimate == Estimate(pytest.approx(np.var(logs, ddof=1)), 3)
    margin = stats.t.ppf(0.975, 3) * np.std(logs, ddof=1) * math.sqrt(2)
    for al_s, expected in ((0.1 * math.exp(0.5 * margin), NO_DIFFERENCE), (0.2, "100.0% more")):
        comparison = compare(runs("al_s", [0.1], "mla"), runs("al_s", [al_s], "nsa"), neighbours=neighbours)
        assert verdict(comparison, "al_s") == expected
        ratio = comparison.ratios[1]
        assert (ratio.noise_floor, ratio.basis) == (pytest.approx(math.exp(margin)), "runs of identical models")
    for change in ({"dtype": "fp32"}, {"device_name": "other"}, {"parameters": 1}):
        others = [floor[0], *(record.model_copy(update=change) for record in floor[1:3])]
        without = compare(runs("al_s", [0.1], "mla"), runs("al_s", [0.2], "nsa"), neighbours=group_repeats(others))
        assert verdict(without, "al_s") == "no verdict: 1 and 1 runs"


@pytest.mark.parametrize(("factor", "large"), [(1.01, False), (2, True)])
def test_a_large_noise_floor_has_two_sides(factor: float, large: bool) -> None:
    """No throughput falls by more than 100 %."""
    neighbours = group_repeats(run_of(seed, tokens_per_s=1e4 * factor**seed) for seed in range(3))
    one, other = (runs("tokens_per_s", [1e4], kind) for kind in ("mla", "nsa"))
    comparison = compare(one, other, neighbours=neighbours)
    margin = stats.t.ppf(0.975, 2) * math.log(factor) * math.sqrt(2)
    sides = f"{math.expm1(-margin):+.1%} to {math.expm1(margin):+.1%}" if large else f"±{math.expm1(margin):.1%}"
    assert f"tokens/s {sides}" in printed(print_comparison, comparison, width=400)


def test_a_run_listed_twice_counts_once() -> None:
    first, second = runs("al_s", [0.1, 0.101], "mla"), runs("al_s", [0.2], "nsa")
    # Beside the second side's folder lies the first's, or a link to it, whose records are read again.
    assert verdict(compare(first, second, neighbours=[Group(first.records[:1])]), "al_s") == "no verdict: 2 and 1 runs"
    assert identical_runs(first, second, [first, second]) == []
    assert identical_runs(first, first, [first]) == []


def test_repeats_of_one_side_set_no_noise_floor_for_the_other() -> None:
    comparison = compare(runs("al_s", [0.1, 0.101, 0.102, 0.103]), runs("al_s", [0.2], "mla"))
    assert verdict(comparison, "al_s") == "no verdict: 4 and 1 runs"


@pytest.mark.parametrize("figure", ["parameters", "parameters_active", "flops_per_token", "kernels"])
def test_models_are_identical_only_with_equal_size_flops_and_kernels(figure: str) -> None:
    first = runs("al_s", [0.1])
    other = {"kernels": {"attention": "other"}}.get(figure, 7.0 if figure == "flops_per_token" else 7)
    second = Group((first.first.model_copy(update={figure: other}),))
    assert compare(first, first).identical
    assert not compare(first, second, ["kernels"]).identical


TEXT = {"validation_text": "aa"}


def losses_of(seed: int, attention: str, losses: Any) -> RunRecord:
    sequences = {"validation_sequence_losses": [float(loss) for loss in losses]}
    return run_of(seed, attention, validation_loss=float(np.mean(losses)), **sequences, **TEXT)


def test_losses_on_one_text_are_compared_as_by_scipys_paired_test() -> None:
    chance = np.random.default_rng(3)
    text = chance.normal(4, 0.5, 40)
    one, other = text + chance.normal(0, 0.02, 40), text * 1.01 + chance.normal(0, 0.02, 40)
    first, second = (Group((losses_of(1, kind, each),)) for kind, each in (("gqa", one), ("mla", other)))
    (ratio,) = [each for each in compare(first, second).ratios if each.metric == "validation_loss"]
    # Each sequence's loss in units of its side's mean, whose logarithm is the side's.
    oracle = stats.ttest_rel(
        *(each / each.mean() - 1 + math.log(each.mean()) for each in (other, one))
    ).confidence_interval(0.95)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(oracle.low), math.exp(oracle.high)), rel=1e-6)
    # Of the plain losses it is nearly the same.
    plain = stats.ttest_rel(other, one).confidence_interval(0.95)
    assert math.log(ratio.high or 0) * 4 == pytest.approx(plain.high, rel=0.02)
    # Unpaired, the text's own spread would hide the difference. And seeds are not known: no verdict.
    unpaired = stats.ttest_ind(other, one).confidence_interval(0.95)
    assert unpaired.low < 0 < math.log(ratio.low or 0)
    assert (ratio.verdict, ratio.basis) == ("no verdict: 1 and 1 runs", "the text alone, paired by sequence")


def test_losses_on_different_texts_are_not_paired() -> None:
    one, other = losses_of(1, "gqa", [4.0, 5.0, 6.0]), losses_of(1, "mla", [4.1, 5.0, 6.2])
    assert text_noise([one], [other]) is not None
    for change in ({"validation_text": "bb"}, {"validation_text": None}, {"validation_sequence_losses": [5.0, 5.1]}):
        assert text_noise([one], [other.model_copy(update=change)]) is None


def test_repeats_on_one_text_are_judged_by_clarks_min_f() -> None:
    chance = np.random.default_rng(5)
    text = chance.normal(4, 0.3, 30)
    sides = [
        [losses_of(first + seed, kind, text + shift + chance.normal(0, 0.05) + chance.normal(0, 0.2, 30))
         for seed in range(3)]
        for first, kind, shift in ((0, "gqa", 0.0), (3, "mla", 0.2))
    ]  # fmt: skip
    (ratio,) = [r for r in compare(*(Group(tuple(side)) for side in sides)).ratios if r.metric == "validation_loss"]
    by_run = [np.log([record.validation_loss for record in side]) for side in sides]
    by_sequence = [np.mean([record.validation_sequence_losses for record in side], axis=0) for side in sides]
    welch = stats.ttest_ind(by_run[1], by_run[0], equal_var=False)
    paired = stats.ttest_rel(*(each / each.mean() + math.log(each.mean()) for each in by_sequence[::-1]))
    # Clark (1973): min F' = F1 F2 / (F1 + F2), degrees (F1 + F2)² / (F1² / n2 + F2² / n1).
    f1, f2 = welch.statistic**2, paired.statistic**2
    min_f, degrees = f1 * f2 / (f1 + f2), (f1 + f2) ** 2 / (f1**2 / 29 + f2**2 / welch.df)
    alone = make_ratio("validation_loss", *(Side.of([r.validation_loss or 0 for r in side]) for side in sides),
                       text=text_noise(*sides))  # fmt: skip
    assert alone.p_value == pytest.approx(stats.f.sf(min_f, 1, degrees), rel=1e-2)
    assert ratio.basis == "3 and 3 repeats, paired by sequence"
    # Repeats as one row keep what was paired.
    row = combine(Group(tuple(sides[0])))
    assert row.validation_sequence_losses == pytest.approx(by_sequence[0].tolist())


def seeded(chance: np.random.Generator, repeats: int, shared: float, ratio: float = 1.0) -> tuple[Group, Group]:
    """Return two rows of the same seeds, whose losses share what a seed does to both; `shared`: its spread."""
    of_seed = chance.normal(0, shared, repeats)
    rows = (np.exp(of_seed + chance.normal(0, 0.003, repeats)) * level for level in (4.0, 4.0 * ratio))
    first, second = (runs("validation_loss", values, kind) for values, kind in zip(rows, ("gqa", "mla"), strict=True))
    return first, second


def loss_ratio(first: Group, second: Group, **further: Any) -> Ratio:
    return Judge(first, second, **further).ratio("validation_loss")


def test_losses_of_the_same_seeds_are_compared_as_by_scipys_paired_test() -> None:
    first, second = seeded(np.random.default_rng(1), 4, 0.02, 1.01)
    logs = [np.log(row.values("validation_loss")) for row in (second, first)]
    oracle = stats.ttest_rel(*logs)
    low, high = oracle.confidence_interval(0.95)
    found = loss_ratio(first, second)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)
    assert found.p_value == pytest.approx(oracle.pvalue, rel=1e-5)
    assert found.basis == "4 repeats, losses paired by seed"
    text = printed(print_comparison, compare(first, second))
    assert "Intervals, 95 %, each figure's own: 4 repeats, losses paired by seed; 4 and 4 repeats." in text
    # Other seeds, another order of the data, and figures of the machine's speed are not paired.
    unpaired = stats.ttest_ind(*logs, equal_var=False)
    later = Group(tuple(each.model_copy(update={"seed": each.seed + 9}) for each in second.records))
    longer = Group(tuple(each.model_copy(update={"global_batch_size": 64}) for each in second.records))
    ordered = Group(tuple(each.model_copy(update={"data_seed": each.seed + 1}) for each in second.records))
    for other in (later, longer, ordered):
        assert loss_ratio(first, other).p_value == pytest.approx(unpaired.pvalue, rel=1e-5)
    assert Judge(first, second).ratio("tokens_per_s", lambda run: run.validation_loss).basis == "4 and 4 repeats"
    # A line of three rows has one spread for all.
    line = (first, second, runs("validation_loss", first.values("validation_loss"), "mqa"))
    assert loss_ratio(first, second, line=line).basis == "4 and 4 repeats"


@pytest.mark.parametrize("shared", proofs_but([0.003], [0.0, 0.003, 0.03]))
@pytest.mark.parametrize("repeats", [3, 5])
def test_intervals_paired_by_seed_cover_the_truth_and_are_narrow(shared: float, repeats: int) -> None:
    chance, truth = np.random.default_rng(17), 1.004
    found = [loss_ratio(*seeded(chance, repeats, shared, truth)) for _ in range(400)]
    covered = sum((each.low or math.inf) <= truth <= (each.high or 0) for each in found)
    assert stats.binom.ppf(0.001, 400, 0.95) <= covered <= stats.binom.ppf(0.999, 400, 0.95)
    widths = [math.log((each.high or 0) / (each.low or 1)) for each in found]
    # That of the runs' own spread, whatever they share.
    expected = 2 * stats.t.ppf(0.975, repeats - 1) * 0.003 * math.sqrt(2 / repeats)
    assert math.sqrt(np.mean(np.square(widths))) == pytest.approx(expected, rel=0.1)


def alike(chance: np.random.Generator, seed: int, attention: str) -> RunRecord:
    """Return a run whose figures all come from the same distribution."""
    noise = dict(zip(BASE, np.exp(chance.normal(0, 0.01, len(BASE))), strict=True))
    figures = {name: BASE[name] * factor for name, factor in noise.items() if isinstance(BASE[name], float)}  # type: ignore[operator]
    return run_of(seed, attention, **figures)


def test_equal_models_are_claimed_to_differ_in_5_percent_of_comparisons() -> None:
    chance = np.random.default_rng(11)
    claims = 0
    for _ in range(200):
        groups = [Group(tuple(alike(chance, seed, kind) for seed in range(3))) for kind in ("gqa", "mla")]
        claims += any(ratio.measurable for ratio in compare(*groups).ratios)
    assert claims <= stats.binom.ppf(0.999, 200, 0.05)


def test_single_runs_of_equal_models_are_never_claimed_to_differ() -> None:
    chance = np.random.default_rng(12)
    singles = [alike(chance, seed, "gqa") for seed in range(12)]
    pairs = [compare(Group((one,)), Group((other,))) for one, other in itertools.combinations(singles, 2)]
    assert len(pairs) == 66
    assert not any(ratio.measurable for pair in pairs for ratio in pair.ratios)


def test_the_interval_of_four_batches_is_students() -> None:
    chance = np.random.default_rng(13)
    batches = chance.normal(4, 0.1, (2000, 4))
    errors = batches.std(axis=1, ddof=1) / 2
    held = [abs(each.mean() - 4) <= half_interval_95(error, 4) for each, error in zip(batches, errors, strict=True)]  # type: ignore[operator]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
    # 1.96 standard errors, as they were taken before, do not hold it.
    assert np.mean(np.abs(batches.mean(axis=1) - 4) <= 1.96 * errors) < 0.88
    assert half_interval_95(0.1, None) is None
    assert half_interval_95(0.1, 1) is None


def test_reports_say_where_repeats_are_too_few() -> None:
    rows = [combine(runs("validation_loss", [4.0, 4.1, 4.2])), combine(runs("validation_loss", [4.1, 4.2, 4.3], "mla"))]
    far = combine(runs("validation_loss", [8.0, 8.01, 8.02], "nsa"))
    sentence = "Between gqa_1.5B, mla_1.5B the comparison is one of speed only: losses differ by no more than the noise"
    (found,) = speed_only([*rows, far])
    assert found.startswith(sentence)
    assert FEW_RUNS_NOTE not in notes([*rows, far])
    single = runs("validation_loss", [4.0], "absolute").first
    assert speed_only([rows[0], single]) == []
    assert FEW_RUNS_NOTE in notes([rows[0], single])
    assert FEW_RUNS_NOTE not in notes([single])
