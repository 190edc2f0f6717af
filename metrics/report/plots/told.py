"""The figures of plots as tables: what the marks' tooltips say, for readers without a pointer and for report.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, KeysView
from itertools import chain
from typing import Any

from markupsafe import Markup

from efficientbench.metrics.report.plots.svg import Figure
from efficientbench.metrics.report.table import Table

TITLE = "The plots' figures"

_Cells = dict[str, dict[str, list[str]]]
"""Name of a mark → column → what its tooltips say there."""


def told_tables(content: Any) -> list[Table]:
    """Return the tables of all plots within what a section shows: a row for each mark's name.

    A column is a plot, or each part of tooltips of several lines. Plots that share a name or a column share a table.
    """
    found: list[_Cells] = []
    for cells in map(_cells, _figures(content)):
        table = next((each for each in found if cells.keys() & each.keys() or _columns(cells) & _columns(each)), None)
        if table is None:
            found.append(cells)
            continue
        for name, told in cells.items():
            for column, words in told.items():
                table.setdefault(name, {}).setdefault(column, []).extend(words)
    return [_table(cells) for cells in found if cells]


def _figures(content: Any) -> Iterator[Figure]:
    if isinstance(content, Figure):
        yield content
    elif isinstance(content, dict | list | tuple):
        for each in content.values() if isinstance(content, dict) else content:
            yield from _figures(each)


def _cells(figure: Figure) -> _Cells:
    """Return what a plot's tooltips say; see `svg.told` for their form."""
    found: _Cells = {}
    for title in re.findall("<title>(.*?)</title>", figure.plot, re.DOTALL):
        first, *parts = Markup(title).unescape().split("\n")
        name, _, words = (first, "", "") if parts else first.partition(": ")
        told = [part.partition(": ") for part in parts] or [(figure.title, "", words)]
        for column, _, said in told:
            found.setdefault(name, {}).setdefault(column, []).append(said)
    return found


def _columns(cells: _Cells) -> KeysView[str]:
    return dict.fromkeys(chain.from_iterable(cells.values())).keys()


def _table(cells: _Cells) -> Table:
    columns = list(_columns(cells))
    rows = [
        (name, *("; ".join(dict.fromkeys(told.get(column, ()))) for column in columns)) for name, told in cells.items()
    ]
    return Table(("plotted", *columns), rows, range(len(columns) + 1), TITLE)
