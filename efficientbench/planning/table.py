"""The tables of plans: without lines, each row on one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from efficientbench.basics.language import in_users_language

ABSENT = "n/a"


def plain_table(
    first: str, columns: Iterable[str], rows: Iterable[Sequence[str]] = (), title: str | None = None, left: int = 0
) -> Table:
    """Return a table without lines, whose rows never wrap, with title and headings in the user's language.

    The cells stay as they are: they may be names, which a user types.

    Args:
        first: heading of the first column, which is aligned left.
        columns: headings of the other columns.
        rows: the cells of each row.
        title: title of the table.
        left: number of the other columns that are aligned left too; the rest is aligned right.
    """
    told = None if title is None else in_users_language(title)
    table = Table(title=told, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(in_users_language(first), no_wrap=True)
    for number, column in enumerate(columns):
        justify: JustifyMethod = "left" if number < left else "right"
        table.add_column(in_users_language(column), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def print_whole(table: Table, console: Console) -> None:
    """Print a table with each row on one line, however narrow the console is, so that names can be found and copied."""
    for line in console.render_lines(table, console.options.update_width(_WIDEST), pad=False):
        text = Text.assemble(*((part.text, part.style or "") for part in line))
        # Blanks behind a short row would be an empty line on a narrow terminal.
        text.rstrip()
        console.print(text, soft_wrap=True, highlight=False)


_WIDEST = 10_000
"""Width that no row has."""


def print_tables(console: Console, tables: Iterable[Table | str | None], notes: Iterable[str] = ()) -> None:
    """Print each table that is not None, with an empty line below it, then the notes."""
    for table in tables:
        if table is not None:
            console.print(table, highlight=False)
            console.print()
    print_lines(console, notes)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines in the user's language, each as one line, however narrow the console is."""
    for line in lines:
        # `Text`, so that brackets and colons in a name are not read as markup.
        console.print(Text(in_users_language(line)), soft_wrap=True)
