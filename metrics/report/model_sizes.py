"""What the models of a set's rows cost beside the baseline's, and whether they cost alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.columns import DERIVED
from efficientbench.metrics.report.suites import Row, Suite
from efficientbench.metrics.report.table import ABSENT, Table, shortened

MOST_APART = 0.05
"""The part by which parameters and FLOPs of a set's rows may both differ without a word."""
NOTED = 0.01
_MOST_NAMED = 3
_COLUMNS: dict[str, Callable[[RunRecord], float | None]] = {
    "parameters": lambda record: record.parameters,
    "active": lambda record: record.parameters_active,
    "training FLOPs/token": lambda record: record.flops_per_token,
    "cache B/token": DERIVED["kv_cache_bytes_per_token"].formula,
}
_NOTE = (
    "In brackets: against the first row of the set. Training FLOPs: causal attention halved, no recomputation; "
    "the cache is what decoding keeps, in the run's dtype. Models of equal cost: match=flops match_to=gqa."
)


def sizes_table(suites: Sequence[Suite]) -> Table:
    """Return a row for each row of the sets that have several, the baseline's first."""
    rows = []
    for suite in suites:
        baseline = suite.rows[suite.baseline]
        others = [row for row in suite.rows if row is not baseline]
        rows += [(suite.title, row.name, *_cells(row, baseline)) for row in (baseline, *others) if others]
    return Table(("", "row", *_COLUMNS, "matched"), rows, (0, 1, 6), notes=(_NOTE,))


def unmatched(suite: Suite) -> str:
    """Return a sentence on the rows of a set that differ much in both parameters and FLOPs; empty without any."""
    known = [sorted(filter(None, costs)) or [0] for costs in zip(*map(_costs, suite.rows), strict=True)]
    # The extremes first: a thousand rows make half a million pairs.
    if not _differ_much([costs[0] for costs in known], [costs[-1] for costs in known]):
        return ""
    baseline = suite.rows[suite.baseline]
    apart = [(row, baseline) for row in suite.rows if _differ_much(_costs(row), _costs(baseline))]
    apart = apart or [pair for pair in combinations(suite.rows, 2) if _differ_much(*map(_costs, pair))]
    if not apart:
        return ""
    return f"Models of different cost: {shortened([_against(*pair) for pair in apart], _MOST_NAMED, '; ')}."


def _costs(row: Row) -> tuple[float, float]:
    """Return parameters and FLOPs per token; 0 where they are not known."""
    return row.record.parameters or 0, row.record.flops_per_token or 0


def _differ_much(costs: Sequence[float], others: Sequence[float]) -> bool:
    return all(0 < min(pair) * (1 + MOST_APART) < max(pair) for pair in zip(costs, others, strict=True))


def _against(row: Row, other: Row) -> str:
    parts = []
    for title, name in (("parameters", "parameters"), ("training FLOPs/token", "training FLOPs per token")):
        more = (_ratio(_COLUMNS[title], row, other) or 1.0) - 1
        parts.append(f"{abs(more):.1%} {'more' if more > 0 else 'fewer'} {name}")
    return f"{row.name} has {' and '.join(parts)} than {other.name}"


def _ratio(read: Callable[[RunRecord], float | None], row: Row, other: Row) -> float | None:
    value, base = read(row.record), read(other.record)
    return value / base if value and base else None


def _cells(row: Row, baseline: Row) -> list[str]:
    cells = []
    for read in _COLUMNS.values():
        value, ratio = read(row.record), _ratio(read, row, baseline)
        against = "" if row is baseline or ratio is None else f" ({ratio - 1:+.1%})"
        cells.append(ABSENT if value is None else f"{value:,.0f}{against}")
    return [*cells, _matched(row.record)]


def _matched(record: RunRecord) -> str:
    """Return which figure the row's size was solved for, and what is left of the difference."""
    figure, other, left = (record.config.get(key) for key in ("match", "match_to", "match_left"))
    if figure is None or not isinstance(left, float | int):
        return ""
    note = ", the nearest size there is" if abs(left) > NOTED else ""
    return f"{figure} of {other}, {left:+.2%} left{note}"
