"""The cost of each run until the loss that all comparable runs reached, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.conditions import group
from efficientbench.metrics.analysis.quality import Cost, cost_to_loss, lowest_common_loss
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import with_names
from efficientbench.metrics.report.table import ABSENT, Table


def cost_tables(records: Sequence[RunRecord]) -> list[Table]:
    """Return a table for each set of comparable runs of one size that validated and are not speed only."""
    groups: dict[tuple[str, str], list[tuple[str, RunRecord]]] = {}
    for name, record in with_names(records):
        if any(point.loss is not None for point in record.quality_curve) and not record.speed_only_reason:
            groups.setdefault((record.size, group(record)), []).append((name, record))
    return [_table(size, members) for (size, _), members in groups.items() if len(members) > 1]


def _table(size: str, members: Sequence[tuple[str, RunRecord]]) -> Table:
    target = lowest_common_loss([record for _, record in members], end=1)
    rows: list[tuple[str, ...]] = []
    reasons: list[str] = []
    for name, record in members:
        try:
            cost = cost_to_loss(record, target)
        except MetricsError as error:
            reasons.append(str(error))
            rows.append((name, ABSENT, ABSENT, ABSENT))
            continue
        low, high = _shifted(record, target, -1), _shifted(record, target, 1)
        rows.append((name, *(_cell(field, cost, low, high) for field in ("tokens", "time_s", "energy_j"))))
        if cost.energy_j is None:
            why = record.unavailable.get("energy_j", "the energy until a validation is not known")
            reasons.append(f"joules: {why}")
    smoke = " (smoke)" if members[0][1].smoke else ""
    title = f"{size}{smoke}: to a validation loss of {target:.4g}, the lowest that all of these surely got to"
    notes = tuple(f"{ABSENT}: {reason}" for reason in dict.fromkeys(reasons))
    return Table(("run", "tokens", "seconds", "joules"), rows, title=title, notes=notes)


def _shifted(record: RunRecord, target: float, end: int) -> Cost | None:
    """Return the cost at one end of the interval; None where it is not known."""
    try:
        return cost_to_loss(record, target, end)
    except MetricsError:
        return None


def _cell(field: str, cost: Cost, low: Cost | None, high: Cost | None) -> str:
    """Return one of the costs with its interval, whose unknown ends are '?'."""
    value, *ends = (getattr(each, field, None) for each in (cost, low, high))
    if value is None:
        return ABSENT
    interval = " to ".join("?" if end is None else _figure(end) for end in ends)
    return f"{_figure(value)} ({interval})"


def _figure(value: float) -> str:
    return count(value) if value >= 1000 else f"{value:.3g}"
