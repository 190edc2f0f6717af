"""Which figures of two rows are judged: other training, a drift of the machine, figures in doubt, cautions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.metrics_parts import make_record, printed

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.cautions import disturbed
from efficientbench.metrics.analysis.compare import Comparison, compare
from efficientbench.metrics.analysis.judging import Judge
from efficientbench.metrics.analysis.repeats import Group, group_repeats
from efficientbench.metrics.analysis.thresholds import Threshold, judge
from efficientbench.metrics.formulas.device_use import DeviceConditions, DeviceSettings, Disturbance, RankWaits
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import Rechecks
from efficientbench.metrics.report.answers import answers, open_questions
from efficientbench.metrics.report.comparison import print_comparison
from efficientbench.metrics.report.first_lines import print_answers
from efficientbench.metrics.report.suites import Suite, make_rows

ENERGY, SPEED, MEMORY, LOSS = range(4)
FIGURES = {"tokens_per_s": 1e4, "al_s": 0.1, "energy_j_per_token": 0.01, "amu_gb": 2.0, "validation_loss": 4.0}
SPREAD = (0.999, 1.0, 1.001)


def row(
    variant: str,
    factor: float = 1.0,
    hours: Sequence[int] = (1, 4, 5),
    training: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **further: Any,
) -> list[RunRecord]:
    """Return repeats whose figures are all `factor` times the same, begun at these hours."""
    config = {"model": {"attention": {"kind": variant}, **(model or {})}}
    return [
        make_record(
            {
                **{"variant": variant, "run": f"{variant}_1.5B", "seed": seed, "tokens": 1000, "steps_measured": 100},
                **{name: value * factor * SPREAD[seed % 3] for name, value in FIGURES.items()},
                **{"started_at": f"2026-01-01T{hour:02}:00:00+00:00", "energy_scope": "gpu"},
                "config": {**config, "training": {"seed": seed, **(training or {})}},
                **further,
            }
        )
        for seed, hour in enumerate(hours)
    ]


def of(records: Sequence[RunRecord]) -> Group:
    return Group(tuple(records))


def suite_of(*rows: list[RunRecord]) -> Suite:
    [suite] = make_rows([record for records in rows for record in records]).suites
    return suite


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {ratio.metric: ratio.verdict for ratio in comparison.ratios}


def outcome(threshold: str, comparison: Comparison) -> tuple[str, str]:
    [found] = judge([Threshold.of(threshold)], comparison)
    return found.state, found.why


RATES = [("learning_rate", 3e-3, 1e-2), ("lr_decay_fraction", None, 0.4), ("beta2", 0.95, 0.99)]


@pytest.mark.parametrize(("key", "one", "other"), RATES)
def test_rows_that_were_trained_otherwise_get_no_verdict_on_losses(key: str, one: object, other: object) -> None:
    first, second = row("gqa", training={key: one}), row("mla", 0.9, (2, 3, 6), training={key: other})
    comparison = compare(of(first), of(second))
    shown = verdicts(comparison)
    assert shown["validation_loss"] == "no verdict: other training"
    assert {shown[name] for name in ("tokens_per_s", "energy_j_per_token", "amu_gb")} == {"10.0% less"}
    why = f"they were trained otherwise: training.{key} {one} against {other}"
    assert f": {why}." in printed(print_comparison, comparison, width=400)
    assert outcome("validation_loss<-5%", comparison) == ("undecided", f"-10.00%, not judged: {why}")
    suite = suite_of(first, second)
    assert [answer.kind for answer in answers(suite)] == ["clear", "clear", "clear", "open"]
    [told] = [line for line in open_questions([suite]) if "Attention mechanisms, 1.5B: gqa with mla" in line]
    assert f"training.{key} {other} against {one}" in told or f"training.{key} {one} against {other}" in told
    allowed = compare(of(first), of(second), ["training"])
    assert verdicts(allowed)["validation_loss"] == "10.0% less"
    assert f"despite other training: training.{key}" in printed(print_comparison, allowed, width=400)


def test_what_also_costs_time_leaves_no_figure_to_judge_and_the_models_own_leaves_all() -> None:
    clipped = compare(
        of(row("gqa", training={"gradient_clip": 1.0})), of(row("mla", 0.9, training={"gradient_clip": 0}))
    )
    assert set(verdicts(clipped).values()) == {"no verdict: other training"}
    experts = [{"moe": {"experts": 8, "auxiliary_loss": factor}} for factor in (0.01, 0.1)]
    routed, other = (row("moe", factor, model=model) for factor, model in zip((1.0, 0.9), experts, strict=True))
    assert set(verdicts(compare(of(routed), of(other))).values()) == {"no verdict: other training"}
    over = [row("moe", model={"moe": {"experts": 8, "auxiliary_over": each}}) for each in ("micro_batch", "global")]
    assert set(verdicts(compare(*map(of, over))).values()) == {"no verdict: other training"}
    # A dense model has no router to balance.
    assert set(verdicts(compare(of(row("dense", model={"moe": None})), of(other))).values()) == {"10.0% less"}


def test_rows_of_as_many_steps_as_a_time_holds_are_compared_but_for_their_losses() -> None:
    first = row("gqa", time_limit_s=600.0)
    # A run that nobody gave a length comes as far as the machine's speed lets it, its repeats too.
    second = [
        each.model_copy(update={"tokens": 900 + each.seed, "steps_measured": 90 + each.seed})
        for each in row("mla", 0.9, (2, 3, 6), time_limit_s=600.0)
    ]
    assert [len(group.records) for group in group_repeats([*first, *second])] == [3, 3]
    comparison = compare(of(first), of(second))
    shown = verdicts(comparison)
    assert shown["validation_loss"] == "no verdict: other training"
    assert {shown[name] for name in ("tokens_per_s", "energy_j_per_token", "amu_gb")} == {"10.0% less"}
    assert "tokens in the time 1,000 against 900" in printed(print_comparison, comparison, width=400)
    with pytest.raises(MetricsError, match="--despite tokens"):
        compare(of(row("gqa")), of(second))


def test_an_optimizer_that_may_differ_brings_its_own_rates() -> None:
    keys = ({"optimizer": "adamw", "matrix_learning_rate": None}, {"optimizer": "muon", "matrix_learning_rate": 0.02})
    first, second = (of(row("gqa", factor, training=own)) for factor, own in zip((1.0, 0.9), keys, strict=True))
    assert verdicts(compare(first, second, ["optimizer"]))["validation_loss"] == "10.0% less"


def test_rows_one_after_the_other_get_no_verdict_on_speed_and_energy() -> None:
    first, second = row("gqa", hours=(1, 2, 3)), row("mla", 0.9, hours=(4, 5, 6))
    comparison = compare(of(first), of(second))
    shown = verdicts(comparison)
    assert {shown[name] for name in ("tokens_per_s", "al_s", "energy_j_per_token")} == {"no verdict: not in turns"}
    assert {shown[name] for name in ("amu_gb", "validation_loss")} == {"10.0% less"}
    text = printed(print_comparison, comparison, width=400)
    assert "J/token: they did not run in turns, so that a drift of the machine would count as a difference" in text
    assert outcome("tokens_per_s<-3%", comparison)[0] == "undecided"
    suite = suite_of(first, second)
    assert [answer.kind for answer in answers(suite)] == ["open", "open", "clear", "clear"]
    assert answers(suite)[SPEED].text == "no verdict; highest figure: gqa, 10,000"
    for told in (open_questions([suite]), printed(print_answers, [suite], width=400).splitlines()):
        assert any("did not run in turns" in line and "mla with gqa" in line for line in told)
    allowed = compare(of(first), of(second), ["turns"])
    assert verdicts(allowed)["tokens_per_s"] == "10.0% less"
    assert "despite sides that did not run in turns" in printed(print_comparison, allowed, width=400)


@pytest.mark.parametrize(
    ("order", "turns"),
    [
        *[("ABBAAB", True), ("ABABAB", True), ("ABAABB", True), ("AAABBB", False), ("BBBAAA", False)],
        *[("AABABB", False), ("AAAABBABBB", False), ("ABABABABAB", True), ("AB", False), ("ABA", True)],
    ],
)
def test_turns_are_an_order_in_which_neither_side_came_first(order: str, turns: bool) -> None:
    sides = [row(name, hours=[at for at, side in enumerate(order) if side == name]) for name in "AB"]
    assert Judge(*map(of, sides)).took_turns is turns


def test_runs_at_the_same_time_are_in_turns_whichever_began_first() -> None:
    first, second = (
        row("gqa", duration_s=7 * 3600.0, hours=(1, 2, 3)),
        row("mla", duration_s=7 * 3600.0, hours=(4, 5, 6)),
    )
    assert Judge(of(first), of(second)).took_turns


@pytest.mark.parametrize(("hours", "verdict"), [((1, 9, 17), "50.0% less"), ((7, 8, 9), "no verdict: not in turns")])
def test_single_runs_are_judged_by_one_model_before_and_after_them(hours: tuple[int, ...], verdict: str) -> None:
    """The drift is then in the spread of that model's runs."""
    first, second = row("mqa", hours=(3,)), row("mla", 0.5, hours=(15,))
    names = ("gqa", "rope", "dense")
    same = [
        record.model_copy(update={"variant": name, "run": f"{name}_1.5B"})
        for name, record in zip(names, row("gqa", hours=hours), strict=True)
    ]
    comparison = compare(of(first), of(second), neighbours=[of([record]) for record in same])
    assert verdicts(comparison)["tokens_per_s"] == verdict
    assert verdicts(comparison)["amu_gb"] == "50.0% less"


DOUBT = "Trace 9000 (GPU-0) counted 500 J, and its polled power gives 1000 J: one of them is wrong"


def test_a_figure_in_doubt_wins_nothing() -> None:
    """Two meters that differ by 2 ×: no least energy, no verdict, no threshold that passes."""
    first, second = row("gqa"), row("mla", 0.5, (2, 3, 6), energy_doubt=DOUBT)
    comparison = compare(of(first), of(second))
    assert verdicts(comparison)["energy_j_per_token"] == "no verdict: in doubt"
    assert verdicts(comparison)["amu_gb"] == "50.0% less"
    assert f"No verdict on J/token: mla_1.5B: {DOUBT}." in printed(print_comparison, comparison, width=400)
    assert outcome("energy_j_per_token>5%", comparison) == ("undecided", f"-50.00%, not judged: mla_1.5B: {DOUBT}")
    suite = suite_of(first, second)
    answer = answers(suite)[ENERGY]
    assert (answer.kind, answer.text, answer.detail) == ("alone", "0.0100", "gqa alone; left out: mla")
    assert f"{DOUBT} (J/token of mla_1.5B)." in open_questions([suite])
    assert answers(suite)[MEMORY].text == "mla: 1.00"


SETTINGS = DeviceSettings(*[None] * 9)
HOT = DeviceConditions(0, "GPU-0", SETTINGS, 90.0, 1000.0, slowed_by={"heat (driver)": 0.5})
CAUTIONED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"disturbances": [Disturbance("GPU-0", 0.0, 1.0, "another process")]},
        "another process used its devices",
        "Another",
    ),
    ({"resumed_after_steps": [10]}, "measured in a last attempt", "was resumed after step 10"),
    ({"device_conditions": [HOT]}, "heat or a fault slowed it", "was slowed: rank 0 by heat"),
    (
        {"al_s_drift_flagged": True, "al_s_drift_ratio": 1.2},
        "its steps became slower or faster",
        "at the measured window's end over that at its beginning",
    ),
    ({"rechecks": Rechecks(4, 1, [])}, "bits differed", "bits differed in 1 of 4 rechecks"),
    (
        {"rank_waits": [RankWaits(0, 0.0, None), RankWaits(1, 0.05, None)]},
        "one rank kept the others waiting",
        "it is the slowest",
    ),
]


def test_seeds_of_a_run_whose_devices_were_used_are_named_once() -> None:
    figures = {"disturbances": [Disturbance("GPU-0", 0.0, 1.0, "another process")]}
    seeds = [make_record({**figures, "seed": seed}) for seed in (1, 2)]
    (told,) = disturbed([*seeds, make_record({**figures, "variant": "mla", "run": "mla_1.5B"})])
    assert told == "Another process used a device of gqa_1.5B, mla_1.5B meanwhile."


@pytest.mark.parametrize(("figures", "carried", "sentence"), CAUTIONED)
def test_what_reports_warn_of_is_said_by_compare_and_carried_by_verdicts(
    figures: dict[str, Any], carried: str, sentence: str
) -> None:
    first, second = row("gqa"), row("mla", 0.9, (2, 3, 6))
    noted = [record.model_copy(update=figures) for record in second]
    comparison = compare(of(first), of([*second[:2], noted[2]]), ["limits", "software"])
    shown = verdicts(comparison)
    assert shown["tokens_per_s"] == f"10.0% less (B: {carried})"
    assert shown["validation_loss"] == f"10.0% less{f' (B: {carried})' if carried == 'bits differed' else ''}"
    [said] = [line for line in printed(print_comparison, comparison, width=400).splitlines() if sentence in line]
    assert said.startswith("B: ")
    state, why = outcome("tokens_per_s<-3%", comparison)
    assert (state, why.endswith(f"; B: {carried}")) == ("failed", True)
    fastest = answers(suite_of(first, noted))[SPEED] if "device_conditions" not in figures else None
    if fastest is not None:
        told = f"11.1% more than mla (95 %: 10.9% to 11.4%; 3 and 3 runs) (mla_1.5B: {carried})"
        assert fastest.detail == told
    # What holds of both sides alike is no word for the one against the other.
    alike = compare(of([record.model_copy(update=figures) for record in first]), of(noted))
    assert verdicts(alike)["tokens_per_s"] == "10.0% less"
