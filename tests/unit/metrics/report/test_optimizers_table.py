"""Optimizers beside each other in a report: each one's best learning rate, and what it costs against AdamW."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record, printed

from efficientbench.metrics import MetricsError
from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.records.record_parts import ParameterGroup
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.comparison import print_comparison
from efficientbench.metrics.report.sections.optimizers import optimizers_table

MEASURED = {
    "adamw": {"energy_j_per_token": 0.5, "tokens_per_s": 1000.0, "amu_gb": 4.0},
    "muon": {"energy_j_per_token": 0.6, "tokens_per_s": 800.0, "amu_gb": 3.0},
}


def run_by(optimizer: str, rate: float, loss: float | None, **changes: Any) -> RunRecord:
    """Return the record of a run by an optimizer, at a rate of the layers' matrices."""
    rates = {"learning_rate": rate} if optimizer == "adamw" else {"learning_rate": 3e-3, "matrix_learning_rate": rate}
    config = {
        "label": f"{optimizer}_{rate:g}",
        "model": {"layers": changes.pop("layers", 4)},
        "parallel": {"distributed_optimizer": optimizer == "adamw"},
        "training": {"optimizer": optimizer, "seed": 1, **rates},
    }
    groups = [
        ParameterGroup("matrices", optimizer, rate, ["weight"]),
        ParameterGroup("others", "adamw", 3e-3, ["norm"]),
    ]
    named = {"run": f"gqa_1.5B__{optimizer}_{rate:g}", "config": config, "parameter_groups": groups}
    return make_record({**MEASURED[optimizer], "tokens": 999, "validation_loss": loss, **named, **changes})


def runs(**changes: Any) -> list[RunRecord]:
    """Three learning rates of each optimizer."""
    muon = [run_by("muon", rate, loss, **changes) for rate, loss in ((0.01, 4.45), (0.03, 4.4), (0.09, 4.5))]
    return [*muon, *(run_by("adamw", rate, loss, **changes) for rate, loss in ((1e-3, 4.9), (3e-3, 4.6), (9e-3, 5.0)))]


def test_each_optimizer_is_compared_with_adamw_at_its_best_learning_rate() -> None:
    table = optimizers_table(runs())
    assert tuple(table.header) == ("run", "optimizer", "learning rate", "val loss", "J/token", "tokens/s", "AMU GB")
    assert [tuple(row) for row in table.rows] == [
        ("gqa_1.5B__adamw_0.003", "adamw", "0.003, best of 3", "4.600", "0.500", "1,000", "4.00"),
        (
            *("gqa_1.5B__muon_0.03", "muon", "0.03, best of 3"),
            *("4.400 (-0.200)", "0.600 (×1.2)", "800 (×0.8)", "3.00 (×0.75)"),
        ),
    ]
    assert "--despite optimizer,layout" in table.notes[0]


def test_a_best_learning_rate_at_the_grids_end_is_flagged_and_a_single_one_is_no_choice() -> None:
    records = [run_by("adamw", 3e-3, 4.6), run_by("muon", 0.01, 4.3), run_by("muon", 0.03, 4.4)]
    table = optimizers_table(records)
    assert [row[2] for row in table.rows] == ["0.003, the only one tried", "0.01, best of 2, the lowest tried"]


def test_the_destination_of_scalars_is_no_difference() -> None:
    adamw, muon = run_by("adamw", 3e-3, 4.6), run_by("muon", 0.01, 4.3)
    assert optimizers_table([adamw, muon.model_copy(update={"config": {**muon.config, "wandb": "project"}})])


def test_optimizers_without_loss_or_energy_show_none() -> None:
    absent = {"energy_j_per_token": None}
    adamw = run_by("adamw", 3e-3, 4.6, **absent)
    table = optimizers_table([adamw, *(run_by("muon", rate, None, **absent) for rate in (0.01, 0.03))])
    assert tuple(table.rows[1][2:]) == (
        "0.01, of 2: no loss to choose the best by",
        "n/a",
        "n/a",
        "800 (×0.8)",
        "3.00 (×0.75)",
    )


@pytest.mark.parametrize(
    "other",
    [
        run_by("muon", 0.03, 4.4, layers=5),
        run_by("muon", 0.03, 4.4, tokens=1998),
        run_by("muon", 0.03, 4.4, device_name="Trace 1"),
        run_by("muon", 0.03, 4.4, tp=2),
        run_by("muon", 0.03, 4.4, status="stopped"),
        run_by("adamw", 1e-3, 4.9),
    ],
)
def test_runs_that_differ_beyond_the_optimizer_or_not_at_all_make_no_table(other: RunRecord) -> None:
    assert not optimizers_table([run_by("adamw", 3e-3, 4.6), other])


def test_both_reports_have_the_table_where_two_optimizers_ran(tmp_path: Path) -> None:
    for number, record in enumerate(runs()):
        write_record(record, tmp_path / "both" / str(number) / "record.json")
    write_record(run_by("muon", 0.03, 4.4), tmp_path / "one" / "record.json")
    for name, shown in (("both", True), ("one", False)):
        build_report(tmp_path / name)
        for file in ("report.html", "report.md"):
            assert ("Optimizers beside each other" in (tmp_path / name / file).read_text()) == shown
    assert "0.600 (×1.2)" in (tmp_path / "both" / "report.md").read_text()


def test_compare_shows_memory_time_energy_and_loss_of_two_optimizers() -> None:
    """The second of two optimizers took a fifth more of everything and reached a lower loss, in three repeats."""
    sides = []
    for optimizer, factor, loss in (("adamw", 1.0, 4.6), ("muon", 1.2, 4.4)):
        records = []
        for seed in (1, 2, 3):
            times = factor * (1 + seed / 1000)
            costs = {"al_s": 0.1 * times, "energy_j_per_token": 0.5 * times, "amu_gb": 4.0 * times}
            records.append(run_by(optimizer, 0.01, loss + seed / 1000, seed=seed, **costs))
        sides.append(Group(tuple(records)))
    with pytest.raises(MetricsError, match=r"--despite optimizer,layout$"):
        compare(*sides)
    comparison = compare(*sides, ["optimizer", "layout"])
    found = {ratio.metric: ratio for ratio in comparison.ratios}
    for name in ("al_s", "energy_j_per_token", "amu_gb"):
        assert (found[name].ratio, found[name].verdict) == (pytest.approx(1.2), "20.0% more")
    assert found["validation_loss"].verdict.endswith("less")
    text = printed(print_comparison, comparison)
    for shown in ("despite a different optimizer: adamw against muon", "distributed_optimizer False", "J/token"):
        assert shown in text
