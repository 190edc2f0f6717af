"""What an examination of this machine finds, and how people read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it serves, what was found, and what would mend it."""

    name: str
    serves: bool
    text: str
    remedy: str = ""


def print_findings(console: Console, title: str, findings: Iterable[Finding]) -> None:
    """A section of a report."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for finding in findings:
        mark = Text("✓", style="green") if finding.serves else Text("✗", style="yellow")
        table.add_row(mark, finding.name, Text(finding.text))
        if finding.remedy:
            table.add_row("", "", Text(f"needs: {finding.remedy}", style="dim"))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()
