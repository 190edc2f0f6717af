"""The outcomes of thresholds on a terminal, as JUnit's XML, and as Markdown for the summary of a CI job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.text import Text

from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.metrics.analysis.compare import Comparison
from efficientbench.metrics.analysis.thresholds import Outcome
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.report.comparison import comparison_table, title
from efficientbench.metrics.report.table import Table, escape, markdown_table


def print_outcomes(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print a line for each threshold; nothing where there is none."""
    for outcome in outcomes:
        console.print(Text(f"{outcome.state}: {outcome.threshold}: {outcome.why}"), soft_wrap=True)


def write_junit(outcomes: Sequence[Outcome], comparison: Comparison, path: Path) -> None:
    """Write JUnit's XML, with a test case for each threshold; an undecided one is a skipped case.

    Raises MetricsError if the file cannot be written.
    """
    count = {state: sum(outcome.state == state for outcome in outcomes) for state in ("failed", "undecided")}
    totals = {"tests": len(outcomes), "failures": count["failed"], "errors": 0, "skipped": count["undecided"]}
    suites = ElementTree.Element("testsuites")
    given = {"name": "efficientbench compare", **{name: str(total) for name, total in totals.items()}}
    suite = ElementTree.SubElement(suites, "testsuite", given)
    sides = f"{title(comparison.second)} over {title(comparison.first)}"
    for outcome in outcomes:
        case = ElementTree.SubElement(suite, "testcase", {"classname": sides, "name": str(outcome.threshold)})
        if outcome.state == "passed":
            ElementTree.SubElement(case, "system-out").text = outcome.why
        else:
            kind = "failure" if outcome.state == "failed" else "skipped"
            ElementTree.SubElement(case, kind, {"message": outcome.why})
    ElementTree.indent(suites)
    write_whole(path, ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n")


def append_summary(outcomes: Sequence[Outcome], comparison: Comparison, path: Path) -> None:
    """Append the outcomes and the table of figures to a Markdown file, which the steps of a CI job may share.

    Raises MetricsError if the file cannot be written.
    """
    lines = [f"### {escape(title(comparison.second))} over {escape(title(comparison.first))}", ""]
    if outcomes:
        rows = [(outcome.state, str(outcome.threshold), outcome.why) for outcome in outcomes]
        lines += [markdown_table(Table(("outcome", "threshold", "why"), rows, text_columns=(0, 1, 2))), ""]
    lines += [markdown_table(comparison_table(comparison.ratios)), ""]
    with os_errors_as(MetricsError, f"{path}: cannot be written"), path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
