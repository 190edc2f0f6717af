"""Puts `report.html` together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from pathlib import Path

from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.failures import FailedRun
from efficientbench.metrics.report.html import plots, tables

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class _Section:
    anchor: str
    title: str
    body: str


def write_html(
    records: Sequence[RunRecord], damaged: Sequence[str], path: Path, failures: Sequence[FailedRun] = ()
) -> None:
    """Write the report as one page that needs nothing beside it. Raises MetricsError where it cannot be written."""
    write_whole(path, page(records, damaged, failures))


def page(records: Sequence[RunRecord], damaged: Sequence[str], failures: Sequence[FailedRun] = ()) -> str:
    """The whole page."""
    runs = plots.number(records)
    sections = [
        _Section("results", "Results", tables.results(runs)),
        _Section("failures", "Runs that did not come to their end", tables.failed(failures)),
        _Section("cost", "What a loss costs", plots.costs(runs)),
        _Section("metrics", "Metrics", plots.metrics(runs)),
        _Section("steps", "Step times", plots.step_times(runs)),
        _Section("learning", "Cost to a quality", plots.convergence(runs) + tables.quality(records)),
        _Section("noise", "Noise", tables.noise(records)),
        _Section("time", "Over time", plots.times(runs)),
        _Section("energy", "Energy, and the paper's tables", tables.paper(records)),
        _Section("experts", "Experts", plots.experts(runs)),
        _Section("setup", "Runs and their settings", tables.settings(runs)),
        _Section("environment", "Environment", tables.where(records)),
        _Section("absent", "What is n/a, and why", tables.absent(records)),
        _Section("damaged", "Records that could not be read", tables.damaged(damaged)),
        _Section("columns", "What the columns mean", tables.glossary()),
    ]
    sections = [section for section in sections if section.body]
    links = "".join(f'<a href="#{section.anchor}">{escape(section.title)}</a>' for section in sections)
    bodies = "".join(
        f'<section id="{section.anchor}"><h2>{escape(section.title)}</h2>{section.body}</section>'
        for section in sections
    )
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>EfficientBench: {len(records):,} runs</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>EfficientBench</h1>{tables.summary(records)}<nav>{links}</nav></header>\n"
        f"<main>{bodies}</main>\n"
        f"<footer>Made {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC from the runs' records. Definitions follow "
        "EfficientLLM (arXiv 2505.13840).</footer>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )
