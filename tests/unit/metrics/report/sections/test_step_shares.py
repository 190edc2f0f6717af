"""The share of a step by kind of work: from a traced run's folder to the report."""

from __future__ import annotations

import re
from pathlib import Path

from support.metrics_parts import make_record

from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.plots.share_plots import share_figures
from efficientbench.metrics.report.sections.rank_table import (
    NAME,
    Profiled,
    StepShares,
    load_step_shares,
    write_step_shares,
)

SECONDS = {"matmuls": 0.06, "attention": 0.03, "idle": 0.01}
SHARES = StepShares(steps=3, step_time_s=0.1, seconds=SECONDS, on_device=True)


def test_the_report_shows_the_shares_of_a_profile(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "gqa_1.5B" / "record.json")
    write_step_shares(SHARES, tmp_path / "gqa_1.5B" / "profile")
    write_step_shares(SHARES, tmp_path / "gqa_1.5B" / "profile" / "previous" / "1" / "profile")
    found, damaged = load_step_shares(tmp_path)
    assert (found, damaged) == ([Profiled("gqa_1.5B", SHARES)], [])
    build_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "gqa_1.5B\nmatmuls: 60.0% of a step of 100.0 ms" in page
    (tmp_path / "gqa_1.5B" / "profile" / NAME).write_text("{}")
    [warning] = build_report(tmp_path).warnings[:1]
    assert "step_shares.json: cannot be read" in warning
    assert 'id="shares"' not in (tmp_path / "report.html").read_text()


def test_bar_segments_are_as_wide_as_their_shares() -> None:
    [figure] = share_figures([Profiled("a", SHARES)])
    bar = figure.plot[figure.plot.index("<g>") :]
    widths = [float(width) + 1 for width in re.findall(r'<rect [^>]*width="([\d.]+)"', bar)]
    assert [round(width / sum(widths), 2) for width in widths] == [0.6, 0.3, 0.1]


def test_device_time_and_thread_time_are_separate() -> None:
    host = SHARES.model_copy(update={"on_device": False})
    figures = share_figures([Profiled("a", SHARES), Profiled("b", host)])
    assert ["device" in figure.note for figure in figures] == [True, False]
    assert ["b\nmatmuls" in figure.plot for figure in figures] == [False, True]
