"""Reports of chosen runs and figures: what is not chosen is in none of their parts, and counts nowhere."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from support.metrics_parts import make_record
from support.rival_runs import rival_runs

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.record import RECORD_NAME, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.choice import Choice

SPEEDS = {"gqa": [100.0, 101.0, 99.5], "mla": [110.4, 109.0, 112.0], "nsa": [50.0, 50.1, 49.9]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs of three repeats; each has an evaluation and a failure of a first attempt."""
    for record in rival_runs("tokens_per_s", SPEEDS):
        run = tmp_path / record.run / f"seed_{record.seed}"
        write_record(record, run / RECORD_NAME)
        (run / "evaluation").mkdir()
        content = {"step": 7, "items": 9, "figures": {f"of_{record.variant}": 0.5}, "unavailable": {}}
        (run / "evaluation" / "core.json").write_text(json.dumps(content))
        (run / "failure.json").write_text(json.dumps({"kind": "crash", "step": 3, "reason": f"{record.variant} fell"}))
    return tmp_path


def test_runs_that_are_not_chosen_are_in_no_part_of_a_report(folder: Path) -> None:
    report = build_report(folder, choice=Choice(only=["gqa", "nsa"]))
    assert {record.variant for record in report.records} == {"gqa", "nsa"}
    assert (len(report.failures), len(report.evaluated)) == (6, 6)
    told = "Chosen by --only gqa,nsa: 6 of 9 runs; the others count nowhere here."
    for name in ("report.html", "report.md", "report.csv", "evaluations.csv"):
        text = (folder / name).read_text()
        assert "mla" not in text
        assert (told in text) == (name in ("report.html", "report.md"))
    # Of one pair instead of three.
    assert report.rows.suites[0].rivals.pairs == 1
    assert "mla fell" in (build_report(folder) and (folder / "report.md").read_text())


def test_chosen_figures_are_the_columns_of_the_table_and_the_csv(folder: Path) -> None:
    report = build_report(folder, choice=Choice(columns=["tokens_per_s", "al_s", "samples_per_s"]))
    assert report.figures == ["tokens_per_s", "al_s"]
    assert "| run | tokens/s | AL ms |\n" in (folder / "report.md").read_text()
    with (folder / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    which = ["run", "variant", "size", "smoke", "speed_only", "seed", "repeats", "status"]
    assert list(rows[0]) == [*which, "tokens_per_s", "al_s", "samples_per_s", "unavailable"]
    assert [row["unavailable"].count(": ") for row in rows] == [1] * 3  # al_s


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / RECORD_NAME)
    with pytest.raises(MetricsError, match="--only: 'gqq' is none of .*; did you mean gqa?"):
        build_report(tmp_path, choice=Choice(only=["gqq"]))
    with pytest.raises(MetricsError, match="--columns: 'walls' is none of .*; did you mean wall_s?"):
        build_report(tmp_path, choice=Choice(columns=["walls"]))
