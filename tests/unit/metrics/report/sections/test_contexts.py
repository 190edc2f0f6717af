"""Long contexts in the report: what is drawn is what the evaluation wrote."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from support.metrics_parts import make_record

from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.sections.contexts import load_contexts

GRID = [
    {"length": length, "depth": depth, "items": 4, "right": right}
    for length, depth, right in ((128, 0.0, 4), (128, 0.5, 3), (256, 0.0, 1), (256, 0.5, 0))
]
RANGES = [{"first": 1, "end": 2, "loss": 9.0, "standard_error": None}, {"first": 2, "end": 128, "loss": 4.5}]


def write(folder: Path, task: str, **parts: Any) -> None:
    (folder / "evaluation").mkdir(parents=True, exist_ok=True)
    summary = {"step": 7, "parts": {"trained_tokens": 128, **parts}}
    (folder / "evaluation" / f"{task}.json").write_text(json.dumps(summary))


def titles(page: str) -> list[str]:
    return [unescape(title) for title in re.findall(r"<title>(.*?)</title>", page, re.DOTALL)]


def test_the_report_shows_every_cell_and_loss_of_the_evaluation(tmp_path: Path) -> None:
    run = tmp_path / "gqa <b>"
    run.mkdir()
    (run / "record.json").write_text(make_record().model_dump_json())
    build_report(tmp_path)
    assert "Long contexts" not in (tmp_path / "report.html").read_text()
    write(run, "needle", grid=GRID)
    write(run, "position_loss", ranges=RANGES)
    build_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert '<section id="contexts"><h2>Long contexts</h2>' in page
    assert "needle: gqa &lt;b&gt;" in page
    shown = titles(page)
    assert {
        "needle of gqa <b>, depth 0%\n128 tokens: 4 of 4 right",
        "needle of gqa <b>, depth 50%\n128 tokens: 3 of 4 right",
        "needle of gqa <b>, depth 0%\n256 tokens: 1 of 4 right",
        "needle of gqa <b>, depth 50%\n256 tokens: 0 of 4 right",
        "gqa <b>: loss 4.500 at 127 tokens",
    } <= set(shown)
    assert [cell for cell in ("100%", "75%", "25%", "0%") if f'text-anchor="middle">{cell}</text>' not in page] == []
    # Only the length beyond the trained one is marked.
    assert ">256*</text>" in page
    assert ">128</text>" in page


def test_damaged_results_are_named_and_intact_ones_read(tmp_path: Path) -> None:
    write(tmp_path / "a", "passkey", grid=GRID)
    write(tmp_path / "b", "passkey", grid=[{**GRID[0], "depth": 2}])
    write(tmp_path / "previous" / "c", "passkey", grid=GRID)
    (tmp_path / "passkey.json").write_text("{}")
    contexts, damaged = load_contexts(tmp_path)
    assert [(each.run, each.task, each.trained_tokens, len(each.grid)) for each in contexts] == [
        ("a", "passkey", 128, 4)
    ]
    [message] = damaged
    assert "b/evaluation/passkey.json: cannot be read (Input should be less than or equal to 1)" in message


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        ("position_loss", {"ranges": [RANGES[0], {**RANGES[1], "end": 10**400}]}),
        ("position_loss", {"ranges": [RANGES[0], {**RANGES[1], "loss": 1e308}]}),
        ("position_loss", {"ranges": RANGES, "trained_tokens": 10**400}),
        ("needle", {"grid": [{**GRID[0], "right": 10**400}]}),
    ],
)
def test_numbers_that_cannot_be_drawn_are_named(task: str, parts: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "gqa"
    write(run, task, **parts)
    (run / "record.json").write_text(make_record().model_dump_json())
    assert [message for message in build_report(tmp_path).warnings if f"{task}.json: cannot be read" in message]
