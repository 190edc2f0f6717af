"""Print the table of a measurement of generation on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from efficientbench.metrics.records.generation.generation import GenerationRecord, GenerationRow

ABSENT = "n/a"


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    title: str
    figure: str
    """The figure's name in GENERATION_FIGURES."""
    text: Callable[[float], str]


COLUMNS = (
    Column("TTFT ms", "ttft_s_p50", lambda value: f"{value * 1e3:,.1f}"),
    Column("p95", "ttft_s_p95", lambda value: f"{value * 1e3:,.1f}"),
    Column("prefill tok/s", "prefill_tokens_per_s", "{:,.0f}".format),
    Column("ms/token", "decode_time_s", lambda value: f"{value * 1e3:,.2f}"),
    Column("decode tok/s", "decode_tokens_per_s", "{:,.1f}".format),
    Column("cache MB", "cache_bytes", lambda value: f"{value / 1e6:,.2f}"),
    Column("B/token", "cache_bytes_per_token", "{:,.0f}".format),
    Column("MBU", "bandwidth_utilization", "{:.1%}".format),
    Column("PCU", "decode_pcu", "{:.0%}".format),
    Column("J/token in", "prefill_energy_j_per_token", "{:.3g}".format),
    Column("J/token out", "decode_energy_j_per_token", "{:.3g}".format),
)


def print_results(record: GenerationRecord, console: Console | None = None) -> None:
    """Print a row for each combination, and below the table the reasons for n/a and the doubts."""
    console = console or Console(width=160, highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in ("prompt", "batch", "new", *(column.title for column in COLUMNS), "±95%"):
        table.add_column(title, justify="right", no_wrap=True)
    reasons: dict[str, None] = {}
    for row in record.rows:
        cells = [f"{size:,}" for size in (row.prompt_tokens, row.batch, row.max_new_tokens)]
        cells += [_cell(row, column, reasons) for column in COLUMNS]
        table.add_row(*cells, _half_interval(row))
        if row.failure is not None:
            reasons.setdefault(f"prompt {row.prompt_tokens:,}, batch {row.batch:,}: {row.failure}")
    console.print(f"\n{record.run} on {record.device_name}, {record.dtype}, weights: {record.weights}")
    console.print(table)
    console.print(f"±95% is of ms/token; cache MB is a sequence's. Engine: {record.engine}; {record.decode_path}")
    for reason in reasons:
        console.print(f"{ABSENT}: {reason}", soft_wrap=True)
    for row in record.rows:
        for doubt in _doubts(row):
            console.print(doubt, soft_wrap=True, markup=False)


def _doubts(row: GenerationRow) -> Iterator[str]:
    """Yield the reasons to doubt a row's figures."""
    for name, phase in row.phases.items():
        place = f"prompt {row.prompt_tokens:,}, batch {row.batch:,}, {name}"
        if phase.energy_doubt is not None:
            yield f"{place}: {phase.energy_doubt}"
        if phase.disturbances:
            yield f"{place}: another process used the device meanwhile"


def _cell(row: GenerationRow, column: Column, reasons: dict[str, None]) -> str:
    value = row.value(column.figure)
    if value is not None:
        return column.text(value)
    if row.failure is None:
        reasons.setdefault(f"{column.title}: {row.why(column.figure)}")
    return ABSENT


def _half_interval(row: GenerationRow) -> str:
    """Return the half width of the 95 % interval of the time per token, relative to that time."""
    decode = row.decode
    if decode is None or decode.time_s is None or decode.time_s_ci_high is None:
        return ABSENT
    return f"{decode.time_s_ci_high / decode.time_s - 1:.1%}"
