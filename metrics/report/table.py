"""A table of text, and how a terminal and Markdown show it; the HTML page has a template of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from efficientbench.basics.language import in_users_language

ABSENT = "n/a"


def spoken(line: str) -> Text:
    """Return a line in the user's language, for a terminal."""
    return Text(in_users_language(line))


def number(value: float | None, form: str, unit: float = 1) -> str:
    """Return a number over its unit in a Python format, or 'n/a' for None."""
    # A count stays an integer, which has formats of its own.
    return ABSENT if value is None else format(value if unit == 1 else value / unit, form)


@dataclass(frozen=True)
class Table:
    """Cells as every report shows them."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: Sequence[int] = (0,)
    """Indices of the columns that hold text and are aligned left; the others hold figures."""
    title: str = ""
    notes: Sequence[str] = ()
    """Sentences below the table."""

    def __bool__(self) -> bool:
        """Return whether the table has rows; reports skip one without."""
        return bool(self.rows)


def print_table(table: Table, console: Console, gap: int = 2) -> None:
    """Print the table, with `gap` spaces between its columns; wrap a cell that is too wide."""
    printed = rich_table.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for place, heading in enumerate(table.header):
        printed.add_column(heading, justify="left" if place in table.text_columns else "right", overflow="fold")
    for row in table.rows:
        # `Text`, so that brackets in a name are not read as markup.
        printed.add_row(*map(Text, row))
    console.print(printed)


def print_wide_table(table: Table, console: Console) -> None:
    """Print the table in as many parts as the console's width needs.

    Columns that do not fit follow in further parts. Each part begins with the text columns, joined into one.
    """
    named = len(table.text_columns)
    heading, names = " ".join(table.header[:named]), [" ".join(row[:named]) for row in table.rows]
    columns = {title: [row[place] for row in table.rows] for place, title in enumerate(table.header) if place >= named}
    for part in _parts(columns, max(len(heading), *map(len, names)), console.width):
        printed = rich_table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        printed.add_column(heading, no_wrap=True, overflow="ellipsis")
        for title in part:
            printed.add_column(title, justify="right", no_wrap=True)
        # One cell of many lines for each column: laid out in a quarter of the time that a cell for each line takes.
        printed.add_row(_lines(names), *(_lines(columns[title]) for title in part))
        console.print(printed)
        console.print()


def _lines(texts: Sequence[str]) -> Text:
    return Text("\n".join(" ".join(text.splitlines()) for text in texts))


def _parts(columns: dict[str, list[str]], name_width: int, width: int) -> list[list[str]]:
    """Return the titles of the columns in groups that fit the width beside the rows' names."""
    gap = 2
    parts: list[list[str]] = [[]]
    used = name_width
    for title, texts in columns.items():
        needed = gap + max(len(title), *map(len, texts))
        if parts[-1] and used + needed > width:
            parts.append([])
            used = name_width
        parts[-1].append(title)
        used += needed
    return parts


def markdown_table(table: Table) -> str:
    """Return the table as Markdown, without its title and notes."""
    sides = ("---" if place in table.text_columns else "---:" for place in range(len(table.header)))
    return "\n".join([_line(table.header), f"|{'|'.join(sides)}|", *map(_line, table.rows)])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def each_reason(absent: Iterable[tuple[str, str]], between: str = ", ") -> list[str]:
    """Return a line for each reason with all titles that are n/a for it; `absent` has pairs of title and reason."""
    titles: dict[str, dict[str, None]] = {}
    for title, reason in absent:
        titles.setdefault(reason, {})[title] = None
    return [f"{ABSENT} {between.join(named)}: {reason}" for reason, named in titles.items()]


def shortened(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def bullets(lines: Iterable[str]) -> str:
    """Return a list in Markdown."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def escape(content: str) -> str:
    """Return the text in one line, escaped for Markdown and HTML."""
    flat = " ".join(content.split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|`*\[\]])", r"\\\1", flat)
