"""Runs that read too little, or repeated, text: flagged in every report, and left out where losses are compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record, printed, read_csv
from support.synthetic_runs import gpu_run

from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.definitions import speed_only_reason, text_read
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.comparison import print_comparison
from efficientbench.metrics.report.headline import print_results
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.sections.loss_costs import cost_tables
from efficientbench.metrics.report.suites import make_rows

ENOUGH = {"tokens_trained": 10**10, "tokens_per_parameter": 20.0, "unique_tokens": 10**10, "epochs": 1.0}


def read(variant: str, **figures: Any) -> RunRecord:
    return gpu_run(variant, "1.5B").model_copy(update={**ENOUGH, "unigram_entropy": 7.0, **figures})


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"tokens_per_parameter": 3.2e-4}, "0.00032 tokens per parameter are fewer than 1"),
        ({"epochs": 4.5}, "4.5 epochs are more than 4"),
        ({"validation_loss": 7.25}, "the loss 7.250 is above the entropy of single tokens, 7.000"),
        ({"tokens_per_parameter": 1.0, "epochs": 4.0, "validation_loss": 7.0}, None),
        ({"tokens_per_parameter": None, "epochs": None, "unigram_entropy": None}, None),
    ],
)
def test_too_few_tokens_or_repeated_text_make_a_run_speed_only(figures: dict[str, Any], reason: str | None) -> None:
    assert read("gqa", **figures).speed_only_reason == reason


def test_few_tokens_do_not_make_an_initialised_run_speed_only() -> None:
    few = {"tokens_per_parameter": 0.1}
    begun = {"config": {"init": {"run": "/runs/base_d8", "step": 100, "sha256": "0" * 64}}}
    assert read("gqa", **few, config={"init": {"run": None}}).speed_only_reason is not None
    assert read("gqa", **few, **begun).speed_only_reason is None
    assert read("gqa", **few, **begun, epochs=4.5).speed_only_reason == "4.5 epochs are more than 4"


def test_epochs_count_the_most_repeated_source() -> None:
    # 700 tokens of a source of 1000, and 300 of one of 100, which is read three times.
    assert text_read(1000, [(0.7, 1000), (0.3, 100)]) == (800, pytest.approx(3.0))
    assert speed_only_reason(20.0, 4.0001) is not None


def test_every_report_names_speed_only_rows(tmp_path: Path) -> None:
    records = [read("gqa"), read("mqa"), read("mla", tokens_per_parameter=0.25)]
    for record in records:
        write_record(record, tmp_path / record.run / "record.json")
    build_report(tmp_path, paper=True)
    reason = "0.25 tokens per parameter are fewer than 1"
    sentence = f"Speed only, without a comparison of losses: mla_1.5B: {reason}."
    texts = {name: (tmp_path / name).read_text(encoding="utf-8") for name in ("report.md", "report.html", "paper.md")}
    assert "MLA (speed only)" in texts.pop("paper.md")
    for text in (*texts.values(), printed(print_results, records, width=250)):
        assert "mla_1.5B (speed only)" in text
        assert sentence in text
        assert "gqa_1.5B (speed only)" not in text
    rows = {row["run"]: row for row in read_csv(tmp_path / "report.csv")}
    assert (rows["mla_1.5B"]["speed_only"], rows["gqa_1.5B"]["speed_only"]) == (reason, "")
    assert (rows["gqa_1.5B"]["tokens_per_parameter"], rows["gqa_1.5B"]["epochs"]) == ("20.0", "1.0")
    assert rows["gqa_1.5B"]["unique_tokens"] == "10000000000"


def test_losses_of_speed_only_rows_are_not_compared() -> None:
    known, short = [read("gqa"), read("mqa")], read("mla", epochs=8.0)
    (table,) = cost_tables([*known, short])
    assert [row[0] for row in table.rows] == ["gqa_1.5B", "mqa_1.5B"]
    assert cost_tables([known[0], short]) == []
    text = page(Report(make_rows([*known, short])))
    cost = text[text.index('id="cost"') : text.index('id="metrics"')]
    assert "1 of 3 runs have no such figure, or are speed only." in cost
    assert "mla_1.5B (speed only): " not in cost
    found = compare(Group((known[0],)), Group((short,)))
    assert {ratio.metric for ratio in found.ratios}.isdisjoint({"validation_loss", "bits_per_byte"})
    assert found.costs == ()
    assert found.speed_only == "mla_1.5B: 8 epochs are more than 4"
    assert "Speed only: mla_1.5B: 8 epochs are more than 4." in printed(print_comparison, found)
    assert "validation_loss" in {ratio.metric for ratio in compare(Group((known[0],)), Group((known[1],))).ratios}


def test_a_run_without_token_figures_is_not_flagged_speed_only() -> None:
    bare = make_record({"validation_loss": 3.0})
    assert (bare.speed_only_reason, bare.unavailable["epochs"]) == (None, "not part of this test")
    assert not math.isnan(bare.validation_loss or math.nan)
