"""The noise floor and the cost of a loss in reports."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
from support.metrics_parts import make_record
from support.synthetic_runs import gpu_run, matrix_runs

from efficientbench.metrics.analysis.quality import cost_to_loss
from efficientbench.metrics.formulas.student import mean_confidence_interval
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.build import markdown
from efficientbench.metrics.report.comparison import noise_floors
from efficientbench.metrics.report.headline import unique_names
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.sections.loss_costs import cost_tables
from efficientbench.metrics.report.suites import make_rows


def test_identical_models_under_several_names_set_the_noise_floor() -> None:
    runs = matrix_runs()
    floor, large = sorted(noise_floors(runs), key=lambda each: -len(each.names))
    assert (floor.names, large.names) == (("gqa_1.5B", "rope_1.5B", "dense_1.5B"), ("gqa_3B", "dense_3B"))
    speeds = [record.tokens_per_s or 0 for record in runs if record.run in floor.names]
    assert floor.largest["tokens_per_s"] == pytest.approx(max(speeds) / min(speeds) - 1)
    assert "Noise floor, from the identical models gqa_1.5B, rope_1.5B, dense_1.5B" in markdown(Report(make_rows(runs)))
    assert f"tokens/s {floor.largest['tokens_per_s']:.2%}" in page(Report(make_rows(runs)))


def test_models_on_other_devices_or_without_a_figure_set_no_noise_floor() -> None:
    other = gpu_run("dense", "1.5B", steps=20).model_copy(update={"device_name": "NVIDIA A100-SXM4-80GB"})
    assert noise_floors([gpu_run("gqa", "1.5B", steps=20), other]) == []
    assert noise_floors([make_record({"run": "a"}), make_record({"run": "b"})]) == []


def test_identical_runs_of_a_sweep_are_searched_once_not_pair_by_pair() -> None:
    run = make_record({"tokens_per_s": 5e4})
    runs = [
        run.model_copy(update={"run": f"{name}_{rate}", "config": {"training": {"seed": 1234, "learning_rate": rate}}})
        for name in ("a", "b")
        for rate in range(300)
    ]
    begin_s = time.process_time()
    floors = noise_floors(runs)
    # Compared with all before it, each of them would take seconds.
    assert time.process_time() - begin_s < 1
    assert [floor.names for floor in floors] == [(f"a_{rate}", f"b_{rate}") for rate in range(300)]


def test_runs_of_one_name_with_windows_of_other_widths_are_named_by_these() -> None:
    def windowed(width: int, seed: int) -> RunRecord:
        layers = {"pattern": ["swa", "own"], "kinds": {"swa": {"attention": {"window": width}}}}
        config = {"model": {"attention": {"kind": "gqa"}, **layers}, "training": {"seed": seed}}
        return make_record({"variant": "swa_3to1", "run": "swa_3to1_1.5B", "seed": seed, "config": config})

    runs = [windowed(512, 1), windowed(512, 2), windowed(1024, 1)]
    assert unique_names(runs) == [
        "swa_3to1_1.5B (with gqa window 512/gqa) seed 1",
        "swa_3to1_1.5B (with gqa window 512/gqa) seed 2",
        "swa_3to1_1.5B (with gqa window 1024/gqa)",
    ]
    [suite] = make_rows([runs[0], runs[2]]).suites
    assert {row.name for row in suite.rows} == {f"swa_3to1_1.5B (with gqa window {width}/gqa)" for width in (512, 1024)}
    # The rows of other tools name no layers.
    assert unique_names([runs[0], runs[0].model_copy(update={"config": {}})]) == [
        "swa_3to1_1.5B seed 1",
        "swa_3to1_1.5B seed 1 #2",
    ]


def test_repeats_have_distinct_names_and_a_spread() -> None:
    runs = [gpu_run("gqa", "0.5B", steps=20, seed=seed) for seed in (1, 2, 3)]
    assert unique_names(runs) == ["gqa_0.5B seed 1", "gqa_0.5B seed 2", "gqa_0.5B seed 3"]
    assert unique_names([runs[0], runs[0], make_record()]) == ["gqa_0.5B seed 1", "gqa_0.5B seed 1 #2", "gqa_1.5B"]
    [row] = make_rows(runs).records
    content = page(Report(make_rows([row])))
    assert "gqa_0.5B × 3" in content
    losses = [record.validation_loss or 0.0 for record in runs]
    low, high = mean_confidence_interval(losses) or (0.0, 0.0)
    assert f"{sum(losses) / 3:.3f} (95 % interval {low:.3f} to {high:.3f})" in content


def test_the_interval_of_few_steps_is_a_lower_bound_and_of_too_few_absent() -> None:
    measured = {"al_s": 1.0, "al_s_ci_low": 0.95, "al_s_ci_high": 1.05}
    few, many = (make_record({**measured, "steps_measured": steps, "run": f"of_{steps}"}) for steps in (399, 400))
    none = make_record({"al_s": 1.0, "steps_measured": 12, "run": "of_12"}, "a 95 % interval needs 30 measured steps")
    text = markdown(Report(make_rows([few, many, none])))
    assert ("≥±5.0%" in text, "| ±5.0%" in text, text.count("≥:")) == (True, True, 1)
    assert "(of_12): a 95 % interval needs 30 measured steps" in text
    assert "95 % interval at least 950.0 to 1,050.0" in page(Report(make_rows([few])))
    assert "≥" not in markdown(Report(make_rows([many])))
    # Repeats have an interval of their own, also where no run has one.
    [row] = make_rows(
        [
            none.model_copy(update={"seed": seed, "al_s": al_s, "started_at": f"2026-01-0{seed}"})
            for seed, al_s in ((1, 1.0), (2, 1.1))
        ]
    ).records
    assert row.al_s_ci_low is not None
    assert "al_s_ci_low" not in row.unavailable
    assert "≥" not in markdown(Report(make_rows([row])))


def number(text: str) -> float:
    value, unit = re.fullmatch(r"([\d.]+)([kMB]?)", text).groups()  # type: ignore[union-attr]
    return float(value) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[unit]


def test_each_run_has_its_cost_to_the_loss_with_an_interval() -> None:
    runs = [gpu_run(variant, "1.5B", steps=80) for variant in ("gqa", "nsa")]
    [table] = cost_tables(runs)
    target = float(re.search(r"loss of ([\d.]+)", table.title).group(1))  # type: ignore[union-attr]
    for row, record in zip(table.rows, runs, strict=True):
        assert row[0] == record.run
        cost = cost_to_loss(record, target)
        for cell, value in zip(row[1:], (cost.tokens, cost.time_s, cost.energy_j), strict=True):
            middle, low, high = re.findall(r"[\d.]+[kMB]?", cell)
            assert number(middle) == pytest.approx(value, rel=0.02)
            assert number(low) <= number(middle) <= number(high)


def test_a_run_without_a_cost_has_a_reason() -> None:
    def without_energy(record: RunRecord) -> RunRecord:
        curve = [replace(point, energy_j=None) for point in record.quality_curve]
        return record.model_copy(update={"quality_curve": curve, "unavailable": {"energy_j": "no power sensor"}})

    late = gpu_run("mla", "1.5B", steps=80)
    late = late.model_copy(update={"quality_curve": late.quality_curve[-1:]})
    [table] = cost_tables([without_energy(gpu_run("absolute", "1.5B", steps=80)), late])
    assert (table.rows[0][3], table.rows[1][1:]) == ("n/a", ("n/a",) * 3)
    assert "n/a: joules: no power sensor" in table.notes
    assert any("was below a validation loss" in reason for reason in table.notes)


def test_runs_under_different_conditions_share_no_cost_table() -> None:
    longer = gpu_run("mla", "1.5B", steps=80).model_copy(update={"seq_len": 4096})
    assert cost_tables([gpu_run("gqa", "1.5B", steps=80), longer]) == []
