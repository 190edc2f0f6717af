"""Repeats as one record."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from support.metrics_parts import make_record, read_csv

from efficientbench.metrics.analysis.cautions import name, slow_steps
from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.repeats import combine, group_repeats
from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.records.record_parts import Outlier, QualityPoint
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.headline import speed_only


def repeat(seed: int, al_s: float, loss: float, **figures: object) -> RunRecord:
    points = [
        QualityPoint(step=s, tokens=s * 10, loss=loss + 1 / s, loss_se=0.5, measured_tokens=s * 10, train_s=al_s * s,
                     energy_j=None if "energy_j" in figures else 2.0 * s) for s in (1, 2)
    ]  # fmt: skip
    times = {"al_s": al_s, "al_s_ci_low": al_s, "al_s_ci_high": al_s}
    counts = {"outlier_steps": seed, "al_s_drift_flagged": seed > 2, "peak_memory_device_bytes": 10 * seed}
    values = {**times, **counts, "validation_loss": loss, "energy_scope": "gpu"}
    return make_record({**values, "seed": seed, "quality_curve": points, **figures})


def combined(records: list[RunRecord]) -> list[RunRecord]:
    return [combine(group) for group in group_repeats(records)]


def test_a_group_is_the_mean_of_its_runs() -> None:
    (one,) = combined([repeat(2, 2.0, 4.5), repeat(1, 1.0, 4.0), repeat(3, 3.0, 5.0, mfu=0.5)])
    assert (one.seed, one.repeats, name(one)) == (1, 3, "gqa_1.5B × 3")
    assert (one.al_s, one.validation_loss, one.peak_memory_device_bytes) == (2.0, 4.5, 20)
    assert one.al_s_ci_high == pytest.approx(2 + 4.302653 / math.sqrt(3))
    assert (one.validation_loss_se, one.validation_loss_se_values) == (pytest.approx(0.5 / math.sqrt(3)), 3)
    assert one.quality_curve[0].loss_margin == pytest.approx(4.3027 * 0.5 / math.sqrt(3), rel=1e-4)
    assert (one.repeat_std["al_s"], one.repeat_std["validation_loss"]) == (1.0, 0.5)
    assert (one.outlier_steps, one.al_s_drift_flagged, one.energy_scope) == (6, True, "gpu")
    # Two of the three have no MFU.
    assert (one.mfu, one.unavailable["mfu"]) == (None, "not part of this test")
    assert [point.loss for point in one.quality_curve] == [5.5, 5.0]
    assert (one.quality_curve[1].train_s, one.quality_curve[1].energy_j) == (4.0, 4.0)
    assert RunRecord.model_validate_json(one.model_dump_json()) == one


def test_the_reports_show_a_row_for_each_group(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_record(repeat(seed, float(seed), 4.0 + seed / 10), tmp_path / "gqa_1.5B" / f"seed_{seed}" / "record.json")
    build_report(tmp_path)
    (row,) = read_csv(tmp_path / "report.csv")
    assert (row["repeats"], row["al_s"]) == ("2", "1.5")
    assert "validation_loss: 0.07" in row["repeat_std"]
    for file in ("report.md", "report.html"):
        content = (tmp_path / file).read_text(encoding="utf-8")
        assert "gqa_1.5B × 2" in content
        assert "4.150 ±1.7%" in content


def test_slow_steps_are_named_with_their_causes() -> None:
    causes = ["the first step after an evaluation", None, "others on the device: blender", None]
    outliers = [
        Outlier(step=number, step_time_s=time_s, times_median=time_s * 10, cause=cause)
        for number, time_s, cause in zip((4, 7, 9, 11), (0.5, 0.3, 0.4, 0.2), causes, strict=True)
    ]
    (line,) = slow_steps([make_record({"outliers": outliers, "outlier_steps": 4}), make_record()])
    assert line == (
        "gqa_1.5B: 4 steps took much longer than the others: step 4 (5.0 times the median; the first step after an "
        "evaluation), step 9 (4.0 times the median; others on the device: blender), step 7 (3.0 times the median; "
        "cause not known)."
    )


def test_losses_that_differ_only_by_noise_are_noted() -> None:
    runs = [
        make_record({"run": run, "validation_loss": loss, **REPEATED, **further})
        for run, loss, further in (
            ("gqa_1.5B", 4.0, {}),
            ("rope_1.5B", 4.02, {}),
            ("mla_1.5B", 4.2, {}),
            ("small_0.5B", 4.0, {"size": "0.5B"}),
            ("half_1.5B", 4.0, {"dtype": "fp16"}),
        )
    ]
    assert speed_only(runs) == [
        "Between gqa_1.5B, rope_1.5B the comparison is one of speed only: losses differ by no more than the noise "
        "between seeds."
    ]
    assert speed_only(runs[2:]) == []


REPEATED = {"repeats": 3, "repeat_std": {"validation_loss": 0.01}}


def test_the_lowest_of_many_noisy_losses_is_flagged_as_chosen_by_noise() -> None:
    def rows(count: int) -> list[RunRecord]:
        losses = [4.0, *[4.025] * (count - 1)]
        return [make_record({"run": f"r{place}", "validation_loss": x, **REPEATED}) for place, x in enumerate(losses)]

    # Welch's p value is 0.038: of two alone a difference, of the three pairs of three none.
    assert speed_only(rows(2)) == []
    assert [line.partition(" the ")[0] for line in speed_only(rows(3))] == ["Between r0, r1, r2"]


def test_the_latest_run_of_a_seed_replaces_earlier_ones() -> None:
    early, late = repeat(1, 1.0, 4.0, started_at="2026-01-01"), repeat(1, 2.0, 4.0, started_at="2026-01-02")
    assert combined([late, early]) == [late]


@pytest.mark.parametrize(
    ("same", "why"),
    [
        ({"started_at": "2026-01-02T04:04:05+01:00"}, "start"),
        ({"step_time_percentiles_s": [float(each) for each in range(101)]}, "step times"),
    ],
)
def test_copies_are_no_repeats(same: dict[str, object], why: str, tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        record = repeat(seed, 1.0 + seed / 10, 4.0, **(same if seed < 3 else {}))
        write_record(record, tmp_path / str(seed) / "record.json")
    report = build_report(tmp_path)
    [row] = report.records
    assert (row.repeats, row.al_s) == (2, pytest.approx(1.2))
    [line] = report.damaged
    assert re.fullmatch(f"gqa_1.5B, seed 2, of .* is a copy of seed 1, which stands for it: the same {why}", line)
    assert line in (tmp_path / "report.md").read_text()


def test_a_run_that_was_resumed_repeats_those_that_were_not() -> None:
    whole, other = (repeat(seed, 1.0, 4.0, tokens=990, steps_measured=99, tokens_trained=1000) for seed in (1, 2))
    last = {"tokens": 300, "steps_measured": 30, "resumed_after_steps": [65], "tokens_trained": 1000}
    assert [group.name for group in group_repeats([whole, other, repeat(3, 1.0, 4.0, **last)])] == ["gqa_1.5B"]
    shorter = repeat(3, 1.0, 4.0, **last | {"tokens_trained": 900})
    assert len(group_repeats([whole, other, shorter])) == 2


def test_runs_that_are_equal_to_the_last_bit_show_no_noise() -> None:
    given = {"peak_memory_device_bytes": 10, "energy_j_per_token": 1.0}
    first, second = (
        group_repeats([repeat(seed, al_s, 4.0, variant=name, **given) for seed in (1, 2, 3)])[0]
        for name, al_s in (("gqa", 1.0), ("mla", 1.1))
    )
    row = combine(first)
    assert (row.al_s, row.al_s_ci_low, row.repeat_std["al_s"]) == (1.0, None, 0.0)
    assert row.unavailable["al_s_ci_low"] == "the runs are equal to the last bit, which is no noise"
    ratios = {ratio.metric: ratio for ratio in compare(first, second).ratios}
    assert ratios["al_s"].verdict == "no verdict: 3 and 3 runs"
    assert ratios["al_s"].p_value is None
    # Bytes are counted, not measured.
    assert ratios["peak_memory_device_bytes"].verdict == "no difference measurable"


def test_seeds_of_weights_and_order_are_apart() -> None:
    both = [repeat(1, 1.0, 4.0), repeat(1, 1.1, 4.0, data_seed=2, started_at="2026-01-03")]
    assert combined(both)[0].repeats == 2
    assert len(combined([both[0], both[0].model_copy(update={"data_seed": 1})])) == 1


@pytest.mark.parametrize("change", [{"formula_id": "other/9"}, {"energy_scope": "node"}, {"steps_measured": 3}])
def test_runs_under_different_conditions_are_no_repeats(change: dict[str, object]) -> None:
    assert len(combined([repeat(1, 1.0, 4.0), repeat(2, 1.0, 4.0, **change)])) == 2


def test_opposite_drifts_do_not_cancel_and_every_disturbance_is_recorded() -> None:
    other = Disturbance("HOST", 0.0, 1.0, "others", 0.5)
    up = repeat(1, 1.0, 4.0, al_s_drift_ratio=1.12)
    down = repeat(2, 1.0, 4.0, al_s_drift_ratio=0.88, disturbances=[other])
    [one] = combined([up, down])
    # 0.88 is further from 1 than 1.12: its inverse is 1.136.
    assert (one.al_s_drift_ratio, one.disturbances) == (0.88, [other])


def test_costs_of_resumed_repeats_are_omitted() -> None:
    whole, resumed = repeat(1, 1.0, 4.0), repeat(2, 9.0, 5.0, resumed_after_steps=[1])
    for records in ([whole, resumed], [resumed, whole]):
        (one,) = combined(records)
        curve = [(point.loss, point.train_s, point.measured_tokens) for point in one.quality_curve]
        assert (curve, one.resumed_after_steps) == ([(5.5, 1.0, 10), (5.0, 2.0, 20)], [])
    (one,) = combined([resumed, resumed.model_copy(update={"seed": 3, "resumed_after_steps": [1, 2]})])
    assert ([point.train_s for point in one.quality_curve], one.resumed_after_steps) == ([9.0, 18.0], [1])
