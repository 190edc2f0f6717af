"""The answer of a study: what is named, what is level, what is refused, and what the reader is told first."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from support.generated import generation, row
from support.simulated_studies import LAWS, TIE
from support.simulated_studies import simulate as simulated
from support.studies import BYTES_PER_TOKEN, HOURS, TOKENS_PER_S, study, without

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.student import t_quantile_95
from efficientbench.studies import simulate
from efficientbench.studies.answer import Answer, answer
from efficientbench.studies.cautions import of_fit, of_plan
from efficientbench.studies.findings import noises
from efficientbench.studies.further import Extra, Further, SmallerTarget
from efficientbench.studies.ladder import Cell
from efficientbench.studies.law import HeldOut
from efficientbench.studies.page import markdown, parts, summary, verdict
from efficientbench.studies.runs import MatchLeft, Study
from efficientbench.studies.target_costs import CACHE, SERVING, costs_of
from efficientbench.studies.verdict import Standing
from efficientbench.studies.words import Part

CLEAR = replace(LAWS, gap=8)
QUIET = replace(TIE, branch=1e-4, trunk=1e-4)


@pytest.fixture(scope="module")
def clear() -> Study:
    return study(CLEAR)


@pytest.fixture(scope="module")
def named(clear: Study) -> Answer:
    return answer(clear)


@pytest.fixture(scope="module")
def undecided() -> Answer:
    # Chances in steps of 5 % are enough here.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "FUTURES", 20)
        return answer(study(replace(LAWS, gap=2, branch=0.004, trunk=0.003)))


def _part(found: Answer, anchor: str) -> Part:
    return next(part for part in parts(found) if part.anchor == anchor)


def _standings(found: Answer) -> dict[str, Standing]:
    assert found.findings is not None
    return {each.variant: each for each in found.findings.verdict.standings}


def _text(part: Part) -> str:
    rows = [" | ".join(row) for row in part.table.rows] if part.table else []
    return "\n".join([*part.lines, *rows, *(part.table.notes if part.table else ())])


def test_a_clear_lead_is_named_with_its_interval_and_what_it_saves(named: Answer) -> None:
    assert named.complete == 81
    assert summary(named).startswith("mine.yaml: 81 runs of 81, 3 seeds")
    one = replace(named, runs=(named.runs[0], *(replace(run, state="missing") for run in named.runs[1:])))
    assert summary(one).startswith("mine.yaml: 1 run of 81, 3 seeds")
    assert named.cautions == ()
    found = named.findings
    assert found is not None
    assert found.named == "mla"
    assert found.further is None
    lead = found.verdict.standings[1].difference
    assert lead is not None
    first = verdict(named).lines[0]
    assert first.startswith(
        f"Pretrain mla: P(best loss) > 0.99; {-lead.mean:.3f} ({-lead.high:.3f} to {-lead.low:.3f})"
    )
    assert "nats below gqa" in first
    assert "fewer device-hours for gqa's loss" in first
    assert "Cheapest to gqa's loss, in device-hours: mla (> 0.99)." in verdict(named).lines


def test_the_table_has_each_variants_figures_at_the_target(named: Answer) -> None:
    table = verdict(named).table
    assert table is not None
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert next(iter(rows)) == "mla"
    assert rows["gqa"]["minus gqa"] == "–"
    assert rows["gqa"]["device-hours to gqa's loss"] == "1"
    assert rows["mla"]["minus gqa"].startswith("−0.0")
    assert rows["mla"]["device-hours"] == f"{HOURS:,.0f}"
    assert rows["mla"]["kWh"] == "n/a"
    assert rows["mla"]["cache/token"] == "0.4 ×"
    assert (rows["mla"]["Pareto"], rows["nsa"]["Pareto"]) == ("yes", "no")
    notes = "\n".join(table.notes)
    assert "kWh: n/a: no record has energy." in notes
    assert "of ratios the geometric mean, of the held-out loss the median." in notes
    assert "device-hours: measured at 350M × FLOPs." in notes
    assert "Held out: 350M, predicted from the other sizes: " in notes
    assert "The target is 4.3 times the largest size." in notes
    assert "As measured at the largest size, 350M, 14.0B tokens: mla " in notes
    assert f"Pareto: over loss, device-hours, {CACHE}" in notes


def test_the_loss_at_the_target_stands_in_bits_per_byte_too(named: Answer, clear: Study) -> None:
    found = named.findings
    assert found is not None
    for each in found.verdict.standings:
        assert each.loss is not None
        assert each.bits_per_byte is not None
        for name in ("mean", "low", "high"):
            expected = getattr(each.loss, name) / math.log(2) / BYTES_PER_TOKEN
            assert getattr(each.bits_per_byte, name) == pytest.approx(expected)
    table = verdict(named).table
    assert table is not None
    assert [float(row[2].partition(" ")[0]) for row in table.rows] == [
        pytest.approx(float(row[1].partition(" ")[0]) / math.log(2) / BYTES_PER_TOKEN, abs=1e-3) for row in table.rows
    ]
    why = "the validation text's size in bytes is not known"
    unsized = tuple(
        replace(
            run, record=run.record.model_copy(update={"bits_per_byte": None, "unavailable": {"bits_per_byte": why}})
        )
        for run in clear.runs
        if run.record is not None
    )
    table = verdict(answer(replace(clear, runs=unsized))).table
    assert table is not None
    assert {row[2] for row in table.rows} == {"n/a"}
    assert f"Bits per byte: {why}." in table.notes


def test_methods_and_every_run_follow_the_answer(named: Answer) -> None:
    anchors = [part.anchor for part in parts(named)]
    assert anchors == [
        *("verdict", "matching", "differences", "rates", "spread", "law", "runs", "priors", "quote"),
    ]
    assert _text(_part(named, "matching")).count("−0.10 %") == 4
    assert "mla_50M | 0.0015: 5.910, 0.003: 5.850, 0.006: 5.970" in _text(_part(named, "rates"))
    runs = _part(named, "runs").table
    assert runs is not None
    assert len(runs.rows) == 81
    differences = _part(named, "differences").table
    assert differences is not None
    assert len(differences.rows) == 2 * 9


def test_the_quote_says_what_was_trained_what_follows_and_how_far_it_reaches(named: Answer) -> None:
    told = _text(_part(named, "quote"))
    assert told.startswith(
        "We trained gqa, mla and nsa in 81 runs of 50M to 350M (3 token budgets, 3 paired seeds; matched by FLOPs). "
        "At 1.5B, 30.0B tokens, mla has the lowest loss with probability > 0.99; mla minus gqa: −0.0"
    )
    assert "(95 % interval −0.0" in told
    assert told.endswith("4.3 times the largest size trained, and the fit is edition 4 of EfficientBench's study.")


def test_what_cannot_be_told_apart_is_said_with_what_would_help(undecided: Answer) -> None:
    found = undecided.findings
    assert found is not None
    assert found.named is None
    assert found.further is not None
    lines = verdict(undecided).lines
    assert " cannot be told apart: P(best loss) 0." in lines[0]
    # 10, 20 and 40 tokens for each parameter are 46 with a trunk; at 1e5 tokens/s for N of 350M, in proportion to N.
    hours = {n: 3 * 46 * n * n / 350e6 / TOKENS_PER_S / 3600 for n in (50e6, 125e6, 350e6, 700e6)}
    one_seed = hours[50e6] + hours[125e6] + hours[350e6]
    seeds, more_seeds, size = found.further.extras
    assert seeds.device_hours == pytest.approx(3 * one_seed)
    assert more_seeds.device_hours == pytest.approx(9 * one_seed)
    assert size.device_hours == pytest.approx(3 * hours[700e6])
    assert f"2 times the seeds (+{seeds.device_hours:,.0f} device-hours): {100 * seeds.chance:.0f} %" in lines[1]
    assert lines[2].startswith("None of these reaches 80 %: ")
    assert "the best cannot be told (probability of the lowest loss: " in _text(_part(undecided, "quote"))


def test_the_cheapest_runs_that_are_likely_enough_are_advised() -> None:
    dear, cheap, unlikely = Extra("a", 90.0, 0.95), Extra("b", 30.0, 0.81), Extra("c", 3.0, 0.79)
    assert Further((dear, cheap, unlikely), None).advised == cheap
    assert Further((unlikely,), None).advised is None


def test_advice_and_a_smaller_target_are_said(undecided: Answer) -> None:
    smaller = SmallerTarget(Cell("0.5 × 1.5B", 7.5e8, 1.5e10), "mla", 0.981)
    further = Further((Extra("2 times the seeds", None, 0.4), Extra("4 times the seeds", 212.4, 0.83)), smaller)
    assert undecided.findings is not None
    lines = verdict(replace(undecided, findings=replace(undecided.findings, further=further))).lines
    assert lines[1:4] == (
        "4 times the seeds (+212 device-hours) would name one with 83 %.",
        "Chances of a name: 2 times the seeds (+device-hours n/a): 40 %; 4 times the seeds (+212 device-hours): 83 %.",
        "At a smaller target, 0.5 × 1.5B, 15.0B tokens, these runs name mla already (0.98).",
    )


def test_a_named_variant_that_is_level_with_others_and_lines_that_cross_are_said(named: Answer) -> None:
    found = named.findings
    assert found is not None
    # Against gqa, mla is behind at 50M and ahead at the target.
    assert {each.variants: each.within_ladder for each in found.crossings}[("gqa", "mla")]
    notes = "\n".join(_part(named, "differences").table.notes)  # type: ignore[union-attr]
    assert "The lines of gqa and mla cross at 195M, within the ladder." in notes
    level = replace(found, verdict=replace(found.verdict, level=(("mla", "nsa"),)))
    lines = verdict(replace(named, findings=level)).lines
    assert lines[1] == "Level with it within 0.01 nats: nsa; cost may decide."


def test_level_variants_are_chosen_by_cost() -> None:
    found = answer(study(QUIET))
    assert found.findings is not None
    assert found.findings.verdict.is_level
    assert found.findings.further is None
    assert verdict(found).lines[0].endswith("are level within 0.01 nats: choose by cost.")


def test_a_variant_that_failed_at_a_size_has_no_place_and_the_reason_is_given(clear: Study) -> None:
    found = answer(without(clear, {("nsa", "350M"): "ran out of memory (log nsa.log)"}))
    assert found.placeless == {
        "nsa": "2 sizes have 2 budgets or more (50M, 125M), and a ladder needs 3; 350M: ran out of memory (log nsa.log)"
    }
    assert found.findings is not None
    assert [each.variant for each in found.findings.verdict.standings] == ["gqa", "mla"]
    assert "Of 81 runs 72 are complete (9 failed); the answer is of these alone." in found.cautions
    assert any(line.startswith("nsa: no place in the verdict: 2 sizes") for line in verdict(found).lines)
    text = markdown(found)
    assert text.index("Of 81 runs 72") < text.index("Pretrain mla") < text.index("Every run")


def test_without_the_baseline_or_cells_in_common_there_is_no_verdict(clear: Study) -> None:
    lost = answer(without(clear, {("gqa", "50M"): "lost"}))
    assert verdict(lost).lines[0].startswith("No verdict: gqa, the baseline, has no place: 2 sizes")
    alone = answer(without(clear, {("mla", "50M"): "lost", ("nsa", "50M"): "lost"}))
    assert alone.no_verdict == "only gqa has a place: a verdict needs 2 variants"
    # Each variant has three sizes and two budgets, but not in the same cells.
    lacks = {("gqa", 10.0), ("mla", 20.0)}
    runs = tuple(
        replace(run, state="missing", record=None, reason="not yet trained")
        if (run.variant, run.cell.tokens / run.cell.parameters) in lacks
        else run
        for run in clear.runs
    )
    apart = answer(replace(clear, runs=runs))
    assert apart.no_verdict == (
        "all variants together have too few cells (budgets at each size: 50M 1, 125M 1, 350M 1): a ladder needs 2 "
        "budgets at 3 sizes"
    )
    assert "No verdict: all variants together" in markdown(apart)


def test_losses_of_different_texts_are_refused(clear: Study) -> None:
    record = clear.runs[0].record
    assert record is not None
    other = replace(clear.runs[0], record=record.model_copy(update={"validation_text": "b" * 64}))
    with pytest.raises(MetricsError, match="their losses are of different validation texts"):
        answer(replace(clear, runs=(other, *clear.runs[1:])))


def test_a_target_beyond_reach_is_said(clear: Study) -> None:
    far = replace(clear, target=Cell("7B", 7e9, 140e9))
    assert of_fit(far, far.ladder, None, None, None) == [
        "The target, 7B, is 20 times the largest size, 350M: a study reaches 10 times, and what lies beyond is a guess."
    ]


def test_a_law_that_misses_its_held_out_size_is_said(clear: Study) -> None:
    inside, outside = (HeldOut("350M", 2.846, 2.811, 2.881, measured) for measured in (2.839, 2.9))
    assert of_fit(clear, clear.ladder, inside, None, None) == []
    assert of_fit(clear, clear.ladder, outside, None, None) == [
        "The law misses its held-out size: the loss at 350M, 2.900, lies outside 2.811 to 2.881, which the other sizes "
        "predict. Losses at the target may be as far off; differences rest on a fit of their own."
    ]


def test_cells_whose_seeds_lie_too_far_apart_are_named() -> None:
    noisy = study(replace(CLEAR, branch=0.03, trunk=0.0))
    (told,) = of_fit(noisy, noisy.ladder, None, None, None)
    named = re.findall(r"(\S+), (\S+) tokens \((0\.\d\d)\)", told)
    # Of 9 cells of 3 seeds each, whose differences have a standard deviation of about 0.03 times the root of 2.
    assert named
    assert len(named) < 9
    assert all(0.05 <= float(spread) < 0.1 for *_, spread in named)


def test_one_seed_and_what_could_not_be_fitted_are_said() -> None:
    one = study(CLEAR, seeds=1)
    assert of_fit(one, one.ladder, None, "4 losses", "no law") == [
        "The largest size could not be held out: 4 losses.",
        "No loss is told at the target: no law.",
        "One seed: the noise between runs was not measured and rests on the prior, a standard deviation of 0.0008 to "
        "0.01 nats.",
    ]


def test_the_quote_of_one_seed_says_that_the_noise_was_not_measured(named: Answer) -> None:
    told = _text(_part(answer(study(CLEAR, seeds=1)), "quote"))
    assert (
        ", if the noise between runs is that of the prior, a standard deviation of 0.0008 to 0.01 nats: with one seed "
        "it was not measured. The target is 4.3 times"
    ) in told
    assert "not measured" not in _text(_part(named, "quote"))


def test_rates_at_an_end_are_said(clear: Study) -> None:
    assert of_plan(replace(clear, searches={("mla", "50M"): {1.5e-3: 5.9, 3e-3: 5.8, 6e-3: 5.7}})) == [
        "The lowest loss lies at an end of the rates that were tried: mla_50M (0.0015 to 0.006). A variant with a "
        "wrong rate looks worse than it is."
    ]


def test_an_unfinished_search_is_not_said_to_end_at_its_end(clear: Study) -> None:
    searches = {("mla", "50M"): {1.5e-3: 5.9, 3e-3: 5.8}}
    reason = "its learning rate is still searched: mla_50M__rate=0.006 is not trained yet"
    assert of_plan(replace(clear, searches=searches, unsearched={"mla": reason})) == []


def test_rows_that_are_not_matched_are_said(clear: Study) -> None:
    assert of_plan(replace(clear, matching={("mla", "50M"): MatchLeft(1120, 1376, 0.021)})) == [
        "Not within 1 % of gqa's FLOPs: mla_50M +2.1 %."
    ]
    of = study(CLEAR, match="none")
    costs = {**of.costs, "mla": replace(of.costs["mla"], training_flops=2.7e20 * 1.04)}
    assert of_plan(replace(of, costs=costs, matching={})) == [
        "The variants are not matched: a better loss may be bought with more compute. Training FLOPs at the target, "
        "against gqa's: mla +4.0 %, nsa +0.0 %."
    ]


def test_mixtures_of_experts_are_said(clear: Study) -> None:
    record = clear.runs[0].record
    assert record is not None
    moe = replace(clear.runs[0], record=record.model_copy(update={"config": {"model": {"moe": {"experts": 8}}}}))
    assert of_plan(replace(clear, runs=(moe, *clear.runs[1:]))) == [
        "gqa: mixtures of experts. One fit for dense and sparse models together is untested."
    ]


def test_two_budgets_tell_differences_and_no_loss(clear: Study) -> None:
    two = tuple(run for run in clear.runs if run.cell.tokens / run.cell.parameters < 30)
    found = answer(replace(clear, runs=two))
    assert found.cautions == (
        "No loss is told at the target: 2 budgets at a size: a loss at the target needs 3, a difference 2.",
    )
    table = verdict(found).table
    assert table is not None
    assert {tuple(row[1:3]) for row in table.rows} == {("n/a", "n/a")}
    assert not [note for note in table.notes if note.startswith("Bits per byte")]
    assert table.rows[0][0] == "mla"


@pytest.mark.parametrize("trunk", [0.0, 0.0009, 0.003])
def test_the_page_tells_how_much_of_the_noise_a_trunks_branches_share(trunk: float) -> None:
    truth = replace(LAWS, trunk=trunk)
    drawn = simulated(truth, 1, seeds=400)
    ladder = replace(drawn.plan, losses=drawn.losses[0])
    expected = trunk**2 / (trunk**2 + truth.branch**2)
    assert [each.of_trunk for each in noises(ladder)] == pytest.approx([expected] * 3, abs=0.05)
    assert [each.of_trunk for each in noises(replace(ladder, trunks=False))] == [None] * 3
    assert [each.of_trunk for each in noises(replace(ladder, losses=ladder.losses[..., :1]))] == [None] * 3
    table = _part(answer(study(truth)), "spread").table
    assert table is not None
    assert all(row[3].endswith(" %") for row in table.rows)


def test_a_price_has_a_column_of_costs(named: Answer) -> None:
    table = verdict(replace(named, price_per_hour=2.5)).table
    assert table is not None
    assert {row[table.header.index("cost")] for row in table.rows} == {"2,500"}


def test_measured_generation_counts_as_a_cost_of_serving(clear: Study) -> None:
    made = {
        "gqa": row("gqa", 128, 1, 0.02),
        "mla": row("mla", 128, 1, 0.01),
        "nsa": row("nsa", 128, 1, None),
    }
    runs = tuple(
        replace(run, generation=generation(run.variant, run.cell.size, [made[run.variant]], config=run.record.config))
        if run.cell.size == "350M" and run.record is not None
        else run
        for run in clear.runs
    )
    costs, told = costs_of(replace(clear, runs=runs), ("gqa", "mla"))
    assert costs.serving["J"][0] == pytest.approx((0.02 / 50 * 128 + 0.02 * 63) / 64)
    assert costs.serving["J"][1] == pytest.approx((0.01 / 50 * 128 + 0.01 * 63) / 64)
    assert told[SERVING] == "measured at 350M, prompt 128, batch 1, new 64"
    costs, told = costs_of(replace(clear, runs=runs), ("gqa", "nsa"))
    assert set(costs.serving) == {"device hours", CACHE}
    assert "n/a J: " in told[SERVING]
    assert costs_of(clear, ("gqa", "mla"))[1][SERVING].startswith("n/a: generation was not measured")


def test_costs_have_the_noise_of_the_runs_that_they_are_measured_from(clear: Study) -> None:
    spread = {"gqa": (0.9, 1.0, 1.1), "mla": (0.85, 0.95, 1.05), "nsa": (1.0, 1.0, 1.0)}
    noisy = replace(clear, costs={name: replace(cost, rates=tuple(spread[name])) for name, cost in clear.costs.items()})
    costs, told = costs_of(noisy, tuple(spread))
    drawn = np.log(costs.training["device-hours"] / HOURS)
    variance = sum(np.var(np.log(each), ddof=1) for each in spread.values()) / 3
    # Student's t of 6 degrees of freedom has 6 / 4 of the variance.
    assert drawn.std(axis=0) == pytest.approx([math.sqrt(variance / 3 * 6 / 4)] * 3, rel=0.1)
    assert drawn.mean(axis=0) == pytest.approx([0] * 3, abs=0.01)
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(0, abs=0.1)
    margin = math.expm1(t_quantile_95(6) * math.sqrt(variance / 3))
    assert told["device-hours"] == f"measured at 350M × FLOPs, ±{100 * margin:.1f} % (95 %)"
    # A tie in cost leaves it open whether the cheaper one is dominated: without the noise, the worse one was.
    assert _standings(answer(clear))["nsa"].on_front is False
    assert _standings(answer(noisy))["nsa"].on_front is None
    # One run has no noise to show.
    alone = replace(clear, costs={name: replace(cost, rates=(1.0,)) for name, cost in clear.costs.items()})
    assert costs_of(alone, tuple(spread))[0].training["device-hours"].tolist() == [HOURS] * 3


def test_tokens_to_be_served_count_beside_the_training(clear: Study) -> None:
    made = {"gqa": row("gqa", 128, 1, 0.02), "mla": row("mla", 128, 1, 0.01), "nsa": row("nsa", 128, 1, 0.02)}
    runs = tuple(
        replace(run, generation=generation(run.variant, run.cell.size, [made[run.variant]], config=run.record.config))
        if run.cell.size == "350M" and run.record is not None
        else run
        for run in clear.runs
    )
    costs = {name: replace(cost, joules=3.6e9) for name, cost in clear.costs.items()}
    serving = replace(clear, runs=runs, costs=costs, served_tokens=1e9)
    found, _ = costs_of(serving, ("gqa", "mla", "nsa"))
    training, after = found.lives["kWh with 1.00B served tokens"]
    assert training.tolist() == [1000.0] * 3
    # At the target a token takes the FLOPs of 2.7e20 / 30e9, at 350M those of the record.
    record = next(run.record for run in runs if run.generation is not None)
    assert record is not None
    assert record.flops_per_token is not None
    growth = 2.7e20 / 30e9 / record.flops_per_token
    joules = (0.02 / 50 * 128 + 0.02 * 63) / 64
    assert after[:2] == pytest.approx([1e9 * joules * growth / 3.6e6, 1e9 * joules / 2 * growth / 3.6e6])
    answered = answer(serving).findings
    assert answered is not None
    assert answered.verdict.cheapest["kWh with 1.00B served tokens"].named == "mla"
    table = verdict(answer(serving)).table
    assert table is not None
    assert "kWh with 1.00B served tokens to gqa's loss" in table.header
    assert any(note.startswith("kWh with 1.00B served tokens: serving by its measurement") for note in table.notes)
    assert not costs_of(replace(serving, served_tokens=None), ("gqa", "mla"))[0].lives
    assert "n/a: generation was not measured" in costs_of(replace(clear, served_tokens=1e9), ("gqa", "mla"))[1][SERVING]


def test_a_cache_without_a_formula_leaves_those_of_the_others_and_a_reason(clear: Study) -> None:
    cached = {"gqa": 1024, "mla": 0, "nsa": None}
    costs = {name: replace(cost, cache_bytes_per_token=cached[name]) for name, cost in clear.costs.items()}
    table = verdict(answer(replace(clear, costs=costs))).table
    assert table is not None
    shown = {row[0]: row[table.header.index("cache/token")] for row in table.rows}
    assert shown == {"gqa": "1 ×", "mla": "0 ×", "nsa": "n/a"}
    assert f"{CACHE}: n/a: no formula of nsa." in table.notes


def test_costs_that_are_not_known_of_all_variants_are_left_out(clear: Study) -> None:
    unknown = replace(clear.costs["nsa"], device_seconds=None, time_source="no plan: the device is not in the table")
    costs, told = costs_of(replace(clear, costs={**clear.costs, "nsa": unknown}), ("gqa", "mla", "nsa"))
    assert list(costs.training) == ["FLOPs"]
    assert told["device-hours"] == "n/a: no plan: the device is not in the table"
