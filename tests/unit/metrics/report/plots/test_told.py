"""What a plot says to a pointer stands in tables too: of the page, and of report.md."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from markupsafe import Markup
from support.generated import generation
from support.metrics_parts import make_record
from support.synthetic_runs import failed_run, gpu_run

from efficientbench.metrics.report.build import markdown
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.plots.svg import Figure, told
from efficientbench.metrics.report.plots.told import told_tables
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.sections.contexts import BY_POSITION, Cell, Context, Range
from efficientbench.metrics.report.sections.rank_table import Profiled, StepShares
from efficientbench.metrics.report.suites import make_rows

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
PLOTTED = {
    *("answers", "generation", "cost", "axes", "scaling", "shares", "metrics", "steps", "learning", "contexts"),
    *("time", "experts"),
}


def whole() -> Report:
    """Return a report with every kind of plot."""
    records = [gpu_run(variant, size, steps=40) for variant in ("gqa", "mla") for size in ("0.5B", "1.5B")]
    records += [gpu_run("gqa", "1.5B", steps=40, seed=seed) for seed in (5, 6)]
    records += [gpu_run("moe", "0.5Bx8", steps=40), failed_run("moe", "1.5Bx8")]
    for label, loss in (("lr=1", 3.25), ("lr=2", 3.5), *((f"lr={lr}__tp={tp}", 3.1) for lr in (1, 2) for tp in (1, 2))):
        swept = {"run": f"nsa_3B__{label}", "variant": "nsa", "size": "3B", "validation_loss": loss}
        records.append(make_record({**swept, "config": {"label": label}}))
    cells = [
        Cell(length=length, depth=depth, items=40, right=length // 100) for length in (512, 4096) for depth in (0.25, 1)
    ]
    losses = [Range(first=1, end=2, loss=9.125), Range(first=2, end=513, loss=4.375)]
    seconds = {"matmuls": 0.0633, "attention": 0.03, "idle": 0.01}
    return Report(
        make_rows(records),
        generations=[generation("gqa"), generation("mla")],
        contexts=[
            Context("a/run", "needle", 7, 512, tuple(cells), ()),
            Context("a/run", BY_POSITION, 7, 512, (), tuple(losses)),
        ],
        profiled=[Profiled("a/run", StepShares(steps=3, step_time_s=0.1033, seconds=seconds, on_device=True))],
    )


class Page(HTMLParser):
    """The words of each plot's marks by section, and the text of each row of a table, after that of its heading."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []
        self.rows: list[str] = []
        self.section = self.into = self.text = self.heading = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self.section = dict(attributes)["id"] or ""
        elif tag in ("title", "tr"):
            self.into, self.text = tag, ""

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "

    def handle_endtag(self, tag: str) -> None:
        if tag == self.into == "title" and self.section:
            self.said.append((self.section, self.text))
        elif tag == self.into == "tr":
            self.rows.append(f"{self.heading} {self.text}")
        elif tag == "thead":
            self.heading = self.text


def markdown_rows(text: str) -> list[str]:
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    return [f"{table[0]} {row}" for table in tables for row in table[2:]]


def test_a_row_of_a_table_has_all_numbers_of_each_mark_on_the_page_and_in_report_md() -> None:
    report = whole()
    shown = Page(page(report))
    assert {section for section, _ in shown.said} == PLOTTED
    for rows in (shown.rows, markdown_rows(markdown(report))):
        held = [set(NUMBER.findall(row)) for row in rows]
        lost = {words for _, words in shown.said if not any(set(NUMBER.findall(words)) <= row for row in held)}
        assert lost == set()


def figure(title: str, *tooltips: str) -> Figure:
    return Figure(title, Markup("").join(map(told, tooltips)))


def test_plots_that_share_a_name_or_a_column_share_a_table() -> None:
    first, second = figure("speed", "a<b: 3", "c: 4"), figure("energy", "c: 5")
    apart, third = figure("of d", "d\nmemory: 6\npower: 7; 8"), figure("of e", "e\npower: 9", "e\npower: 9")
    tables = told_tables({"plots": [("suite", {"figures": [first, second], "runs": 2})], "more": [apart, third]})
    assert [(table.header, table.rows) for table in tables] == [
        (("plotted", "speed", "energy"), [("a<b", "3", ""), ("c", "4", "5")]),
        (("plotted", "memory", "power"), [("d", "6", "7; 8"), ("e", "", "9")]),
    ]
    assert told_tables({"table": "no plot", "figures": [Figure("none", Markup(""), "n/a: no loss")]}) == []
