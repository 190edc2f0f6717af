"""Evaluations of two runs, paired by item, as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from efficientbench.metrics.analysis.paired import Paired
from efficientbench.metrics.report.table import Table, print_table


def print_evaluations(paired: Sequence[Paired], console: Console) -> None:
    """Print the figures of two runs over the same items; nothing where there is none."""
    if not paired:
        return
    rows = []
    for each in paired:
        digits = ".4f" if each.unit == "nats" else ".1%"
        figures = [format(value, digits) for value in (each.first, each.second)]
        signed = [format(value, f"+{digits}") for value in (each.difference, each.low, each.high)]
        row = (each.name, f"{each.items:,}", *figures, signed[0], f"{signed[1]} to {signed[2]}", f"{each.p:.2g}")
        rows.append((*row, each.verdict))
    console.print()
    console.print(Text("Evaluations, over the items that both were given, paired by item:"))
    header = ("task", "items", "A", "B", "B − A", "95 %", "p", "verdict")
    print_table(Table(header, rows, text_columns=(0, 7)), console, gap=1)
    console.print(Text("p: exact McNemar test, of losses a z-test over documents; all together by Holm's correction."))
    for each in paired:
        if each.unpaired:
            console.print(
                Text(
                    f"{each.name.partition(':')[0]}: {each.unpaired:,} items have no partner: they were given otherwise"
                )
            )
