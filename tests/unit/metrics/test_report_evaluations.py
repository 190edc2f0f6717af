"""Evaluations in the reports of a folder of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.metrics_parts import make_record

from efficientbench.metrics.records.record import RECORD_NAME, write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.evaluations import evaluations_table


def write(folder: Path, task: str, figures: dict[str, float | None], unavailable: dict[str, str]) -> None:
    (folder / "evaluation").mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"step": 1200, "items": 2229, "figures": figures, "unavailable": unavailable}
    (folder / "evaluation" / f"{task}.json").write_text(json.dumps(content))


def test_figures_stand_in_every_report(tmp_path: Path) -> None:
    first = tmp_path / "gqa_0.5B"
    write_record(make_record(), first / RECORD_NAME)
    write(first, "loss", {"loss": 3.14159, "bits_per_byte": None}, {"bits_per_byte": "no bytes <b>"})
    write(first, "core", {"core": None, "copa": 0.55, "squad": None}, {"core": "1 of its 22 tasks", "squad": "absent"})
    write(first / "previous", "loss", {"loss": 9.0}, {})
    (first / "evaluation" / "torn.json").write_text('{"step": 3')
    table = evaluations_table(tmp_path)
    assert table.rows == [
        ("gqa_0.5B", "core", "core", "n/a", "2,229", "1,200"),
        ("gqa_0.5B", "core", "copa", "0.55", "2,229", "1,200"),
        ("gqa_0.5B", "loss", "loss", "3.142", "2,229", "1,200"),
        ("gqa_0.5B", "loss", "bits_per_byte", "n/a", "2,229", "1,200"),
    ]
    assert table.notes == ("n/a core: 1 of its 22 tasks", "n/a bits_per_byte: no bytes <b>")
    build_report(tmp_path)
    markdown, page = ((tmp_path / f"report.{kind}").read_text() for kind in ("md", "html"))
    assert "## Evaluations" in markdown
    assert "3.142" in markdown
    assert 'id="evaluations"' in page
    assert "no bytes &lt;b&gt;" in page


def test_without_evaluations_there_is_no_section(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "gqa_0.5B" / RECORD_NAME)
    build_report(tmp_path)
    assert "Evaluations" not in (tmp_path / "report.md").read_text()
    assert 'id="evaluations"' not in (tmp_path / "report.html").read_text()
