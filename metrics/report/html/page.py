"""Builds `report.html`, and other pages: their sections, in the template `page.html` with `sections.html`'s looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from efficientbench.basics.counted import number_of
from efficientbench.metrics.records.figures import Subject
from efficientbench.metrics.records.generation.generation import GenerationRecord
from efficientbench.metrics.records.record import RunRecord, Status
from efficientbench.metrics.report.plots.svg import MOST_RUNS, key_of
from efficientbench.metrics.report.plots.told import told_tables
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.section import SECTIONS
from efficientbench.metrics.report.table import shortened

MOST_IN_HEADING = 5
"""Most variants, and most sizes, that the heading names."""
MOST_LINES = 9
"""Most first lines that are not folded, so that they and the answers fit a screen."""
MOST_NAMED = 24
"""Most runs that one line names; its tooltip names all."""


def page(report: Report) -> str:
    """Return the text of report.html."""
    contents = [(section, section.content(report)) for section in SECTIONS]
    runs, subject = len(report.records), compared(report.records or report.generations)
    now = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}"
    return rendered(
        f"{subject} – EfficientBench" if subject else "EfficientBench",
        ". ".join(filter(None, (_summary(report.records, report.generations), report.chosen))),
        [(section, content) for section, content in contents if content],
        f"Made {now} UTC from the runs' records. Definitions follow EfficientLLM (arXiv 2505.13840).",
        heading=subject or "EfficientBench",
        filtered=runs > 0,
    )


def rendered(
    title: str,
    lead: str,
    sections: Sequence[tuple[Any, Any]],
    footer: str,
    heading: str | None = None,
    filtered: bool = False,
) -> str:
    """Return the text of a page.

    Args:
        title: the title of the window.
        lead: the line below the heading.
        sections: each section, with `anchor` and `title`, and what it shows: what the macro of its anchor in
            sections.html draws, else lines, figures and a table (`told`), or a table (`tabled`).
        footer: the last line.
        heading: the page's heading; None: the title.
        filtered: whether a field filters the rows of runs.
    """
    # Autoescape: a record's own text may hold anything. Only what `svg` built is taken as markup.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"key": key_of, "most_runs": MOST_RUNS, "most_named": MOST_NAMED, "most_lines": MOST_LINES}
    environment.globals["told_tables"] = told_tables
    return environment.get_template("page.html").render(
        title=title, heading=heading or title, lead=lead, sections=sections, footer=footer, filtered=filtered
    )


def compared(subjects: Sequence[Subject]) -> str:
    """Return what was run, in words: "gqa, mla, nsa at 0.5B, 1.5B (smoke)"; empty without any."""
    sizes = [f"{each.size} (smoke)" if each.smoke else each.size for each in subjects]
    parts = [dict.fromkeys(each.variant for each in subjects), dict.fromkeys(sizes)]
    return " at ".join(shortened(list(names), MOST_IN_HEADING) for names in parts if names)


def _summary(records: Sequence[RunRecord], generations: Sequence[GenerationRecord]) -> str:
    """Return how many runs the report covers, how they ended, on which devices and when."""
    if not records:
        where = ", ".join(dict.fromkeys(each.device_name for each in generations))
        return f"no training, generation with {len(generations):,} models on {where}"
    ended_so: Counter[str] = Counter()
    for record in records:
        ended_so[record.status] += record.repeats
    ended = ", ".join(f"{ended_so[state]:,} {state}" for state in get_args(Status) if ended_so[state])
    devices = list(dict.fromkeys(f"{record.devices} × {record.device_name}" for record in records))
    named = devices[:4] + (["…"] if len(devices) > 4 else [])
    days = sorted(record.started_at[:10] for record in records)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    repeats = sorted({record.repeats for record in records})
    of_repeats = f" of {' to '.join(map(str, dict.fromkeys((repeats[0], repeats[-1]))))} repeats"
    rows = f" in {number_of(len(records), 'row')}{of_repeats}" if repeats[-1] > 1 else ""
    return f"{number_of(ended_so.total(), 'run')}{rows} ({ended}) on {', '.join(named)}, {when}"
