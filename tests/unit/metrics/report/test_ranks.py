"""The table of ranks: which one is the slowest, and what each takes."""

from __future__ import annotations

from pathlib import Path

from support.metrics_parts import make_record

from efficientbench.metrics.formulas.device_use import RankUse, RankWaits
from efficientbench.metrics.records.record import RunRecord, read_record, write_record
from efficientbench.metrics.report.build import markdown
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.sections.rank_table import MOST_RANKS, rank_table
from efficientbench.metrics.report.suites import make_rows

USES = [RankUse(0, 0.2, 10.0, 20.0, 0.5, 12_345.6), RankUse(1, 0.2, 11.0, None, None, None)]
WAITS = [RankWaits(0, 0.02, None), RankWaits(1, 0.002, 0.001)]


def of_ranks(uses: list[RankUse], waits: list[RankWaits]) -> RunRecord:
    return make_record({"rank_uses": uses, "rank_waits": waits})


def test_the_rank_that_works_longest_is_the_first_row() -> None:
    table = rank_table([of_ranks(USES, WAITS), make_record({"run": "other"})])
    assert table.rows == [
        ("gqa_1.5B", "1", "0.2", "0.003", "0.197", "11.00", "n/a", "n/a", "n/a"),
        ("gqa_1.5B", "0", "0.2", "0.02", "0.18", "10.00", "20.00", "50.0%", "12,345.6"),
    ]
    assert not rank_table([make_record()])


def test_no_rank_is_the_slowest_without_recorded_waits() -> None:
    table = rank_table([of_ranks(USES, [])])
    assert [row[1:5] for row in table.rows] == [("0", "0.2", "n/a", "n/a"), ("1", "0.2", "n/a", "n/a")]


def test_only_the_slowest_of_many_ranks_are_shown() -> None:
    uses = [RankUse(number, 1.0, None, None, None, None) for number in range(20)]
    waits = [RankWaits(number, 0.5 - 0.01 * number, None) for number in range(20)]
    table = rank_table([of_ranks(uses, waits)])
    assert [row[1] for row in table.rows] == [str(19 - place) for place in range(MOST_RANKS)]


def test_the_record_has_rank_figures_and_both_reports_show_them(tmp_path: Path) -> None:
    record = of_ranks(USES, WAITS)
    write_record(record, tmp_path / "record.json")
    assert read_record(tmp_path / "record.json").model_copy(update={"sha256": None}) == record
    for records, shown in (([record], True), ([make_record()], False)):
        report = Report(make_rows(records))
        assert ('<section id="ranks">' in page(report), "## Ranks" in markdown(report)) == (shown, shown)
