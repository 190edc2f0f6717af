"""Evaluations in the reports of a folder of runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.metrics_parts import make_record

from efficientbench.metrics.records.record import RECORD_NAME, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.sections.evaluations import core_interval, evaluations_table, load_evaluations


def write(folder: Path, task: str, figures: dict[str, float | None], unavailable: dict[str, str]) -> None:
    (folder / "evaluation").mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"step": 1200, "items": 2229, "figures": figures, "unavailable": unavailable}
    (folder / "evaluation" / f"{task}.json").write_text(json.dumps(content))


def test_evaluation_figures_are_in_every_report(tmp_path: Path) -> None:
    first = tmp_path / "gqa_0.5B"
    write_record(make_record(), first / RECORD_NAME)
    write(first, "loss", {"loss": 3.14159, "bits_per_byte": None}, {"bits_per_byte": "no bytes <b>"})
    write(first, "core", {"core": None, "copa": 0.55, "squad": None}, {"core": "1 of its 22 tasks", "squad": "absent"})
    write(first / "previous", "loss", {"loss": 9.0}, {})
    (first / "evaluation" / "torn.json").write_text('{"step": 3')
    endless = {"step": float("inf"), "items": 1, "figures": {}, "unavailable": {}}
    (first / "evaluation" / "endless.json").write_text(json.dumps(endless))
    huge = {"step": 1, "items": 1, "figures": {"loss": 10**400}, "unavailable": {}}
    (first / "evaluation" / "huge.json").write_text(json.dumps(huge))
    table = evaluations_table(load_evaluations(tmp_path)[0])
    assert table.rows == [
        ("gqa_0.5B", "core", "core", "n/a", "", "2,229", "", "1,200"),
        ("gqa_0.5B", "core", "copa", "0.55", "", "2,229", "", "1,200"),
        ("gqa_0.5B", "loss", "loss", "3.142", "", "2,229", "", "1,200"),
        ("gqa_0.5B", "loss", "bits_per_byte", "n/a", "", "2,229", "", "1,200"),
    ]
    assert table.notes == ("n/a core: 1 of its 22 tasks", "n/a bits_per_byte: no bytes <b>")
    assert tmp_path / "evaluations.csv" in build_report(tmp_path).written
    with (tmp_path / "evaluations.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    shown = [(row["task"], row["name"], row["value"], row["reason"]) for row in rows]
    assert shown == [
        ("core", "core", "n/a", "1 of its 22 tasks"),
        ("core", "copa", "0.55", ""),
        ("core", "squad", "n/a", "absent"),
        ("loss", "loss", "3.14159", ""),
        ("loss", "bits_per_byte", "n/a", "no bytes <b>"),
    ]
    assert {(row["run"], row["items"], row["step"]) for row in rows} == {("gqa_0.5B", "2229", "1200")}
    markdown, page = ((tmp_path / f"report.{kind}").read_text() for kind in ("md", "html"))
    assert "## Evaluations" in markdown
    assert "3.142" in markdown
    assert 'id="evaluations"' in page
    assert "no bytes &lt;b&gt;" in page


@pytest.mark.parametrize(
    ("figures", "parts", "low", "high"),
    [
        # Of right and wrong Wilson's interval, of scores between them and of several samples Student's.
        (
            {"accuracy": 0.25},
            {"standard_error": (0.25 * 0.75 / 19) ** 0.5},
            *stats.binomtest(5, 20).proportion_ci(method="wilson"),
        ),
        ({"accuracy": 0.25}, {"standard_error": 0.02}, *stats.t.interval(0.95, 19, 0.25, 0.02)),
        ({"accuracy": 0.0}, {"standard_error": 0.0}, *stats.binomtest(0, 20).proportion_ci(method="wilson")),
        ({"word_perplexity": 31.0, "word_perplexity_stderr": 2.0}, {}, *stats.t.interval(0.95, 19, 31, 2)),
        ({"acc,strict": 0.5, "acc_stderr,strict": 0.05}, {}, *stats.t.interval(0.95, 19, 0.5, 0.05)),
        ({"accuracy": 0.25}, {}, None, None),
        ({"loss": 3.2}, {"tokens": 7}, None, None),
    ],
)
def test_a_figure_has_the_interval_that_its_summary_allows(
    figures: dict[str, float], parts: dict[str, float], low: float | None, high: float | None, tmp_path: Path
) -> None:
    (tmp_path / "evaluation").mkdir()
    content = {"step": 1, "items": 20, "figures": figures, "unavailable": {}, "parts": parts}
    (tmp_path / "evaluation" / "task.json").write_text(json.dumps(content))
    [task], problems = load_evaluations(tmp_path)
    assert problems == []
    wanted = None if low is None or high is None else pytest.approx((low, high), rel=1e-5, abs=1e-9)
    assert task.figures[0].interval == wanted


def test_the_interval_of_core_is_that_of_a_mean_of_centred_accuracies() -> None:
    generator = np.random.default_rng(7)
    truth, baselines = generator.uniform(0.3, 0.8, 22), generator.choice([0.0, 0.25, 0.5], 22)
    centred = float(np.mean((truth - baselines) / (1 - baselines)))
    inside = 0
    for _ in range(300):
        shares = generator.binomial(100, truth) / 100
        found = (shares - baselines) / (1 - baselines)
        parts = {
            f"task{n}": {"accuracy": share, "items": 100, "baseline": baseline}
            for n, (share, baseline) in enumerate(zip(shares, baselines, strict=True))
        }
        low, high = core_interval(float(found.mean()), parts.values()) or (1, 0)
        inside += low <= centred <= high
    assert 276 <= inside <= 296


def test_without_evaluations_there_is_no_section(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "gqa_0.5B" / RECORD_NAME)
    build_report(tmp_path)
    assert "Evaluations" not in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "evaluations.csv").exists()
    assert 'id="evaluations"' not in (tmp_path / "report.html").read_text()
