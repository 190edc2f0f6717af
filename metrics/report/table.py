"""The table that is printed: one row a run, in as many parts as the terminal's width asks for."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import SHOWN, absences, cell, notes, unique_names
from efficientbench.metrics.report.noise import noise_floors


def print_table(records: Sequence[RunRecord], console: Console) -> None:
    """Print one row a run, then each reason for an n/a once.

    Columns that the console is too narrow for follow in further tables, each of which names the runs again.
    """
    if not records:
        console.print("No run has a record yet.")
        return
    cells = {column.title: [cell(column, record) for record in records] for column in SHOWN}
    print_columns("run", unique_names(records), cells, console)
    for note in (*notes(records), *map(str, noise_floors(records))):
        console.print(Text(note))
    for absence in absences(records):
        console.print(Text(str(absence)), style="dim")


def print_columns(heading: str, names: Sequence[str], cells: dict[str, list[str]], console: Console) -> None:
    """Print a row for each name, its cells by column; in parts that each fit the width beside the names."""
    for part in _parts(cells, max(len(heading), *map(len, names)), console.width):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
        for title in part:
            table.add_column(title, justify="right", no_wrap=True)
        # One cell of many lines for each column: laid out in a quarter of the time that a cell for each line takes.
        table.add_row(_lines(names), *(_lines(cells[title]) for title in part))
        console.print(table)
        console.print()


def _lines(texts: Sequence[str]) -> Text:
    return Text("\n".join(" ".join(text.splitlines()) for text in texts))


def _parts(cells: dict[str, list[str]], name_width: int, width: int) -> list[list[str]]:
    """The columns in groups, each of which fits the width beside the rows' names."""
    gap = 2
    parts: list[list[str]] = [[]]
    used = name_width
    for title, texts in cells.items():
        needed = gap + max(len(title), *map(len, texts))
        if parts[-1] and used + needed > width:
            parts.append([])
            used = name_width
        parts[-1].append(title)
        used += needed
    return parts
