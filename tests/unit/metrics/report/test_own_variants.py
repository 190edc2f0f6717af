"""Variants of the user's own in reports: beside the baseline of their matrix, and never as the baseline of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record, read_csv

from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.model_sizes import sizes_table
from efficientbench.metrics.report.paper.paper import paper_tables
from efficientbench.metrics.report.suites import make_rows

OURS = {"kind": "mine:VARIANT"}
ROPE = {"kind": "rope"}
MODELS: dict[str, dict[str, Any]] = {
    "gqa": {"attention": {"kind": "gqa", "query_groups": 2}, "position": ROPE, "moe": None},
    "rope": {"attention": {"kind": "gqa", "query_groups": 8}, "position": ROPE, "moe": None},
    "dense": {"attention": {"kind": "gqa", "query_groups": 8}, "position": ROPE, "moe": None},
    "mine": {"attention": OURS, "position": {"kind": "none"}, "moe": None},
    "near": {"attention": {"kind": "gqa", "query_groups": 8}, "position": OURS, "moe": None},
    "experts": {"attention": {"kind": "gqa", "query_groups": 8}, "position": ROPE, "moe": {"experts": 4}},
}


def run(variant: str, size: str = "50M", **values: Any) -> RunRecord:
    config = {"model": MODELS[variant]}
    return make_record({"variant": variant, "run": f"{variant}_{size}", "size": size, "config": config, **values})


@pytest.mark.parametrize(
    ("variant", "beside", "title"),
    [
        ("mine", ("gqa",), "Attention mechanisms, 50M"),
        ("mine", ("dense", "rope", "gqa"), "Attention mechanisms, 50M"),
        ("mine", ("rope",), "Positional encodings, 50M"),
        ("near", ("gqa", "rope"), "Positional encodings, 50M"),
        ("near", ("gqa",), "Attention mechanisms, 50M"),
        ("experts", ("gqa", "dense"), "Mixture of experts"),
        ("mine", (), "Other runs, 50M"),
    ],
)
def test_a_variant_of_ones_own_is_in_the_set_of_the_baseline_beside_it(
    variant: str, beside: tuple[str, ...], title: str
) -> None:
    records = [run(variant), *map(run, beside)]
    [suite] = [each for each in make_rows(records).suites if variant in {row.record.variant for row in each.rows}]
    assert suite.title == title
    assert len(suite.rows) == (2 if beside else 1)
    if beside:
        assert suite.rows[suite.baseline].record.variant in beside
        assert [row[1].split()[0] for row in sizes_table([suite]).rows][1] == variant
    tables = {table.title: [row[0] for row in table.rows] for table in paper_tables(records)}
    assert variant in tables[title.partition(",")[0]]


@pytest.mark.parametrize("other", [{"size": "125M"}, {"seq_len": 4096}, {"status": "failed"}])
def test_a_baseline_under_other_conditions_is_none_beside_it(other: dict[str, Any]) -> None:
    titles = [suite.name for suite in make_rows([run("mine"), run("gqa", **other)]).suites]
    assert "Other runs" in titles


def test_a_run_whose_attention_was_replaced_is_no_row_of_the_variant_in_any_file(tmp_path: Path) -> None:
    figures = {"tokens_per_s": 100.0, "parameters": 50_000_000, "parameters_active": 50_000_000}
    replaced = run("gqa", **figures | {"tokens_per_s": 300.0, "config": {"model": MODELS["mine"], "label": "b"}})
    large = run("gqa", "125M", **figures | {"parameters": 125_000_000, "parameters_active": 125_000_000})
    for place, each in enumerate([replaced.model_copy(update={"run": "gqa_50M__b"}), run("gqa", **figures), large]):
        (tmp_path / str(place)).mkdir()
        write_record(each, tmp_path / str(place) / RECORD_NAME)
    report = build_report(tmp_path, paper=True)
    other = "(with mine:VARIANT + no positions)"
    small = next(suite for suite in report.rows.suites if suite.size == "50M")
    assert [row.name for row in small.rows] == ["gqa", f"gqa {other}"]
    assert small.rows[small.baseline].name == "gqa"
    assert {row["run"] for row in read_csv(tmp_path / "report.csv")} == {"gqa_50M", "gqa_125M", f"gqa_50M__b {other}"}
    assert f"| gqa__b {other} | 50M |" in (tmp_path / "paper.md").read_text()
    markdown = (tmp_path / "report.md").read_text()
    # Two architectures in one line would say that a larger model is slower.
    assert "| gqa | 100 at 50M, 100 at 125M |" in markdown
