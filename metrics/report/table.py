"""The table that is printed: one row a run, in as many parts as the terminal's width asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from metrics.record import RunRecord

ABSENT = "n/a"
SMOKE_NOTE = "(smoke): a scaled-down model; its figures do not stand for the named one's."


@dataclass(frozen=True)
class _Column:
    title: str
    metric: str
    """The name whose reason explains an n/a."""
    text: Callable[[float], str]


_COLUMNS = (
    _Column("params", "parameters", lambda value: _count(value)),
    _Column("tokens/s", "tokens_per_s", lambda value: f"{value:,.0f}"),
    _Column("AL ms", "al_s", lambda value: f"{value * 1e3:,.1f}"),
    _Column("±95%", "al_s_ci_high", lambda value: f"{value:.1%}"),
    _Column("TT tok/param/s", "tt_tokens_per_param_s", lambda value: f"{value:.3g}"),
    _Column("AMU GB", "amu_gb", lambda value: f"{value:,.2f}"),
    _Column("PCU", "pcu", lambda value: f"{value:.1%}"),
    _Column("AEC W", "aec_w", lambda value: f"{value:,.0f}"),
    _Column("J/token", "energy_j_per_token", lambda value: f"{value:.3g}"),
    _Column("MFU", "mfu", lambda value: f"{value:.1%}"),
    _Column("val loss", "validation_loss", lambda value: f"{value:.3f}"),
    _Column("ppl", "perplexity", lambda value: f"{value:,.1f}"),
    _Column("bits/byte", "bits_per_byte", lambda value: f"{value:.3f}"),
)


def print_table(records: Sequence[RunRecord], console: Console) -> None:
    """Print one row a run, then each reason for an n/a once.

    Columns that the console is too narrow for follow in further tables, each of which names the runs again.
    """
    if not records:
        console.print("No run has a record yet.")
        return
    names = [_name(record) for record in records]
    cells = {column: [_cell(column, record) for record in records] for column in _COLUMNS}
    for part in _parts(cells, max(map(len, names)), console.width):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("run", no_wrap=True, overflow="ellipsis")
        for column in part:
            table.add_column(column.title, justify="right", no_wrap=True)
        for i, name in enumerate(names):
            table.add_row(Text(name), *(cells[column][i] for column in part))
        console.print(table)
        console.print()
    if any(record.smoke for record in records):
        console.print(Text(SMOKE_NOTE))
    for line in _reasons(records):
        console.print(Text(line), style="dim")


def _name(record: RunRecord) -> str:
    status = "" if record.status == "completed" else f" ({record.status})"
    return f"{record.run}{' (smoke)' if record.smoke else ''}{status}"


def _cell(column: _Column, record: RunRecord) -> str:
    value = getattr(record, column.metric)
    if value is None:
        return ABSENT
    if column.metric == "al_s_ci_high":
        return f"±{(value - record.al_s) / record.al_s:.1%}" if record.al_s else ABSENT
    return column.text(value)


def _parts(cells: dict[_Column, list[str]], name_width: int, width: int) -> list[list[_Column]]:
    """The columns in groups, each of which fits the width beside the runs' names."""
    gap = 2
    parts: list[list[_Column]] = [[]]
    used = name_width
    for column, texts in cells.items():
        needed = gap + max(len(column.title), *map(len, texts))
        if parts[-1] and used + needed > width:
            parts.append([])
            used = name_width
        parts[-1].append(column)
        used += needed
    return parts


def _reasons(records: Sequence[RunRecord]) -> list[str]:
    """'n/a AEC W, J/token: reason', with the runs where it does not hold for all."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for record in records:
        for column in _COLUMNS:
            if getattr(record, column.metric) is None:
                titles, runs = found.setdefault(record.unavailable[column.metric], ({}, {}))
                titles[column.title] = None
                runs[_name(record)] = None
    everyone = len({_name(record) for record in records})
    lines = []
    for reason, (titles, runs) in found.items():
        where = "" if len(runs) == everyone else f" ({', '.join(runs)})"
        lines.append(f"{ABSENT} {', '.join(titles)}{where}: {reason}")
    return lines


def _count(value: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.0f}"
