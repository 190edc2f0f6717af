"""The spread of a group of repeats as it is printed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from efficientbench.metrics.analysis.compare import METRICS
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.report.comparison import UNITS, unit_scale


def print_spread(group: Group, console: Console) -> None:
    """Print each figure's mean over the repeats, its 95 % confidence interval and the spread between runs."""
    runs = len(group.records)
    seeds = ", ".join(str(record.seed) for record in group.records)
    console.print()
    console.print(Text(f"{group.name}{' (smoke)' if group.first.smoke else ''}, {runs} runs (seeds {seeds})"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("figure", "mean", "95 % interval", "std / mean"):
        table.add_column(title, justify="left" if title == "figure" else "right")
    for metric in METRICS:
        spread = group.spread(metric)
        if spread is None:
            continue
        scale = unit_scale(metric)
        interval = "n/a"
        if spread.low is not None and spread.high is not None:
            interval = f"{spread.low / scale:.4g} to {spread.high / scale:.4g}"
        noise = "n/a" if spread.std is None or not spread.mean else f"{spread.std / spread.mean:.1%}"
        table.add_row(UNITS[metric], f"{spread.mean / scale:.4g}", interval, noise)
    console.print(table)
