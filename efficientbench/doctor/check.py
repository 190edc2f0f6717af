"""Checks of this machine, and their table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from efficientbench.basics.language import in_users_language


@dataclass(frozen=True)
class Check:
    """One check of the machine, a line of the report."""

    name: str
    """Name of the part of the machine that was checked."""
    passed: bool
    """Whether that part works."""
    result: str
    """Version, product or reason that the check found."""
    remedy: str = ""
    """What the machine needs instead; empty where there is nothing to add."""


def print_checks(console: Console, title: str, checks: Iterable[Check]) -> None:
    """Print checks as a section of the report, in the user's language."""
    table = Table.grid(Column(no_wrap=True), Column(no_wrap=True), Column(ratio=1), padding=(0, 2, 0, 0))
    for check in checks:
        mark = Text("✓", style="green") if check.passed else Text("✗", style="yellow")
        table.add_row(mark, check.name, Text(in_users_language(check.result)))
        if check.remedy:
            table.add_row("", "", Text(in_users_language(f"needs: {check.remedy}"), style="dim"))
    console.print(Text(in_users_language(title), style="bold"))
    console.print(table)
    console.print()
