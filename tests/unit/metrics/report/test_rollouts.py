"""Runs that learned by rewards in comparisons and reports: under which conditions, and what their answers took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record, printed

from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.conditions import differences
from efficientbench.metrics.analysis.repeats import Group, combine, group_repeats
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.records.record_parts import DataSource, PhaseCost, Reinforcement
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.comparison import ROLLOUTS_APART, print_comparison
from efficientbench.metrics.report.sections.rollouts import rollouts_table

TEXT = [DataSource("talks it validates on", 1.0, 10, 2_000_000, "a", "b")]
LEARNED = Reinforcement(
    questions=160,
    without_signal=40,
    too_long=0,
    reward_first=0.1,
    reward_last=0.3,
    rollouts=PhaseCost(time_s=100.0, tokens=5_000, energy_j=2_000.0),
    updates=PhaseCost(time_s=50.0, tokens=8_000, energy_j=400.0),
    files_sha256=["c" * 64],
)


def run_of(seed: int = 1, learned: Reinforcement | None = LEARNED, variant: str = "gqa", **figures: Any) -> RunRecord:
    """Return the record of a run that learned by rewards, whose answers are of another length for each seed."""
    config = {"model": {"attention": {"kind": variant}}, "training": {"objective": "rl", "seed": seed}}
    measured = {"tokens": 8_000, "steps_measured": 10, "supervised_tokens": 1000 + 100 * seed, "data": TEXT}
    named = {"run": f"rl_{variant}", "variant": variant, "seed": seed, "config": config, "energy_j": 400.0}
    return make_record({"al_s": 5.0, **measured, **named, "reinforcement": learned, **figures})


def slower(seed: int, factor: float) -> Reinforcement:
    """Return what a run learned that sampled for so many times as long, a little more with each seed."""
    time_s, energy_j = 100.0 * factor * (1 + seed / 100), 2_000.0 * factor * (1 + seed / 200)
    return replace(LEARNED, rollouts=PhaseCost(time_s, 5_000, energy_j))


def test_questions_are_a_condition_but_answer_length_is_not() -> None:
    assert differences(run_of(1), run_of(7)) == []
    other = replace(LEARNED, files_sha256=["d" * 64])
    [found] = differences(run_of(1), run_of(2, other))
    assert found.condition == "data"
    assert found.one.endswith(", questions cccccccccccc")
    assert found.other.endswith(", questions dddddddddddd")
    own = replace(LEARNED, files_sha256=[])
    assert "questions that the task makes" in differences(run_of(1), run_of(1, own))[0].other
    assert len(group_repeats([run_of(1), run_of(2)])) == 1
    assert len(group_repeats([run_of(1), run_of(2, other)])) == 2


def test_a_comparison_reports_the_cost_of_answers_separately() -> None:
    sides = [
        Group(tuple(run_of(seed, slower(seed, factor), variant) for seed in (1, 2, 3)))
        for factor, variant in ((1.0, "gqa"), (2.0, "mla"))
    ]
    comparison = compare(*sides)
    speed, energy = comparison.rollouts
    assert (speed.metric, speed.ratio) == ("rollout_tokens_per_s", pytest.approx(0.5))
    assert (energy.metric, energy.ratio) == ("rollout_energy_j_per_token", pytest.approx(2))
    assert (speed.measurable, energy.verdict) == (True, "100.0% more")
    text = printed(print_comparison, comparison)
    assert ROLLOUTS_APART in text
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("rollout ")] == [
        ["rollout", "tokens/s"],
        ["rollout", "J/token"],
    ]


def test_unmeasured_answer_figures_have_a_reason() -> None:
    unmetered = replace(LEARNED, rollouts=PhaseCost(100.0, 5_000, None))
    first, second = Group((run_of(1),)), Group((run_of(1, unmetered, "mla", energy_j=None),))
    comparison = compare(first, second)
    assert [ratio.metric for ratio in comparison.rollouts] == ["rollout_tokens_per_s"]
    assert comparison.unavailable["rollout_energy_j_per_token"] == "rl_mla: not part of this test"
    assert "rollout J/token" in printed(print_comparison, comparison)
    holes = PhaseCost(100.0, 5_000, None, "the meter's readings have holes")
    torn = Group((run_of(1, replace(LEARNED, rollouts=holes), "mla"),))
    assert compare(first, torn).unavailable["rollout_energy_j_per_token"] == f"rl_mla: {holes.energy_unavailable}"
    short = Group((run_of(1, replace(LEARNED, rollouts=None), "mla"),))
    assert compare(first, short).unavailable["rollout_tokens_per_s"].endswith("answers was not measured")
    text = Group((run_of(1, None),))
    assert compare(text, text).rollouts == ()


def test_repeats_are_grouped_and_report_their_mean_cost() -> None:
    records = [run_of(seed, replace(slower(seed, 1.0), reward_last=seed / 10)) for seed in (1, 2, 3)]
    found = combine(Group(tuple(records))).reinforcement
    assert found is not None
    assert (found.questions, found.without_signal, found.reward_last) == (480, 120, pytest.approx(0.2))
    assert found.rollouts is not None
    assert (found.rollouts.time_s, found.rollouts.tokens) == (pytest.approx(102), 5_000)
    lacking = [*records[1:], run_of(1, replace(LEARNED, reward_last=None, rollouts=PhaseCost(1.0, 1, None, "holes")))]
    found = combine(Group(tuple(lacking))).reinforcement
    assert found is not None
    assert found.rollouts is not None
    assert (found.reward_last, found.rollouts.energy_j, found.rollouts.energy_unavailable) == (None, None, "holes")


def test_a_report_has_a_row_for_each_run(tmp_path: Path) -> None:
    unmetered = replace(LEARNED, rollouts=PhaseCost(100.0, 5_000, None), updates=PhaseCost(50.0, 8_000, None))
    records = [run_of(), run_of(1, unmetered, "mla", energy_j=None), make_record({"run": "of text"})]
    table = rollouts_table(records)
    assert [tuple(row) for row in table.rows] == [
        (
            *("rl_gqa", "160", "25.0%", "0.1", "0.3"),
            *("100.0", "5,000", "50", "2,000", "0.4"),
            *("50.0", "8,000", "160", "400", "0.05"),
        ),
        (
            *("rl_mla", "160", "25.0%", "0.1", "0.3"),
            *("100.0", "5,000", "50", "n/a", "n/a"),
            *("50.0", "8,000", "160", "n/a", "n/a"),
        ),
    ]
    assert tuple(table.notes[-2:]) == (
        "n/a J of rollouts of rl_mla: not part of this test.",
        "n/a J of updates of rl_mla: not part of this test.",
    )
    assert not rollouts_table(records[2:])
    for number, record in enumerate(records):
        write_record(record, tmp_path / str(number) / "record.json")
    build_report(tmp_path)
    for file in ("report.html", "report.md"):
        assert "Rewards, and what sampling answers took" in (tmp_path / file).read_text()
