"""Runs that failed, in every report."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from rich.console import Console
from support.metrics_parts import make_record

from efficientbench.metrics.records.record import RECORD_NAME, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.failures import FailedRun, load_failures, print_failures


def test_failures_are_rows_with_their_reasons(tmp_path: Path) -> None:
    write_record(make_record({}), tmp_path / "gqa_1.5B" / RECORD_NAME)
    reason = "loss is <nan> | after\nthe step"
    for folder, content in (
        ("mqa_3B", json.dumps({"kind": "non_finite", "rank": 1, "step": 7, "reason": reason, "checkpoint": None})),
        ("mla_3B", json.dumps({"kind": "time_limit", "rank": None, "step": None, "reason": "too long"})),
        ("mqa_3B/previous/20260101", json.dumps({"kind": "crash", "reason": "long ago"})),
        ("nsa_3B", "{"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "failure.json").write_text(content, encoding="utf-8")
    late = FailedRun("mla_3B", "time_limit", None, "too long")
    assert load_failures(tmp_path) == [late, FailedRun("mqa_3B", "non_finite", 7, f"rank 1: {reason}")]
    assert build_report(tmp_path).failures == load_failures(tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| mqa_3B | non finite | 7 | rank 1: loss is &lt;nan&gt; \\| after the step |" in text
    assert "| mla_3B | time limit | n/a | too long |" in text
    assert "rank 1: loss is &lt;nan&gt; | after the step" in (tmp_path / "report.html").read_text(encoding="utf-8")
    console = Console(file=io.StringIO(), width=100)
    print_failures(load_failures(tmp_path), console)
    assert "rank 1: loss is <nan> | after the step" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_smaller_micro_batch_is_told(tmp_path: Path) -> None:
    record = make_record({"micro_batch_size": 1, "config": {"training": {"micro_batch_size_asked": 4}}})
    write_record(record, tmp_path / RECORD_NAME)
    build_report(tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "(micro-batch 1 for 4)" in text
    assert "memory did not suffice" in text
    with (tmp_path / "report.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["micro_batch_size"], row["micro_batch_size_asked"]) == ("1", "4")
