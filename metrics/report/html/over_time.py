"""One run's memory, utilization and power over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.metrics.device_use import Timeline
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.html.svg import Look, Scale, axis_x, axis_y, figure, path, rect, short, svg, told

WIDTH = 400
LEFT, RIGHT = 46, 388
PANEL = 72
GAP = 30
MOST_BUCKETS = 200
"""Points of a line: more cannot be told apart at its width."""


@dataclass(frozen=True)
class _Quantity:
    title: str
    mean: str
    largest: str
    factor: float
    of_any_scope: bool
    """Whether a meter beside the devices may give it."""


_QUANTITIES = (
    _Quantity("memory, GB", "memory_used_gb_mean", "memory_used_gb_max", 1, False),
    _Quantity("utilization, %", "utilization_mean", "utilization_max", 100, False),
    _Quantity("power, W", "power_w_mean", "power_w_max", 1, True),
)


@dataclass(frozen=True)
class _Moment:
    time_s: float
    mean: float
    low: float
    high: float


def over_time(run: int, name: str, record: RunRecord, look: Look) -> str:
    """The run's plots, one below the other on one axis of time; empty where nothing was kept."""
    series = [(quantity, _moments(record, quantity)) for quantity in _QUANTITIES]
    drawn = [(quantity, moments) for quantity, moments in series if len(moments) > 1]
    if not drawn:
        return ""
    times = [moment.time_s for _, moments in drawn for moment in moments]
    x = Scale.over(times, LEFT, RIGHT, margin=0.0)
    bottom = GAP + (PANEL + GAP) * (len(drawn) - 1) + PANEL
    parts = []
    for window in record.windows:
        begin = x(window.begin_s)
        parts.append(rect(begin, GAP, x(window.end_s) - begin, bottom - GAP, "window"))
    # Of repeats the first is drawn, and nothing says which of them a disturbance befell.
    for other in record.disturbances if record.repeats == 1 else ():
        begin = x(other.begin_s)
        band = rect(begin, GAP, max(x(other.end_s) - begin, 1.5), bottom - GAP, "disturbance")
        parts.append(told(run, f"{other.description} ({other.begin_s:,.0f} to {other.end_s:,.0f} s)", band))
    parts.append(axis_x(x, GAP, bottom, "s from the opening of the measured window"))
    for place, (quantity, moments) in enumerate(drawn):
        parts.append(_panel(run, name, quantity, moments, x, GAP + (PANEL + GAP) * place, look))
    absent = [_absence(record, quantity) for quantity, moments in series if len(moments) <= 1]
    return figure(name, svg(WIDTH, bottom + 36, f"{name} over time", parts), " ".join(absent))


def _panel(
    run: int, name: str, quantity: _Quantity, moments: Sequence[_Moment], x: Scale, top: float, look: Look
) -> str:
    highest = max(moment.high for moment in moments)
    y = Scale.over([100.0 if quantity.title.startswith("utilization") else highest], top + PANEL, top, zero=True)
    content = []
    for piece in _pieces(moments):
        band = [(x(moment.time_s), y(moment.high)) for moment in piece]
        band += [(x(moment.time_s), y(moment.low)) for moment in reversed(piece)]
        content.append(path(band, f"band c{look.colour}", closed=True))
        content.append(path([(x(moment.time_s), y(moment.mean)) for moment in piece], f"line c{look.colour}"))
    mean = sum(moment.mean for moment in moments) / len(moments)
    title = f"{name}: {quantity.title}, about {short(round(mean, 2))}, at most {short(round(highest, 2))}"
    return axis_y(y, LEFT, RIGHT, quantity.title) + told(run, title, "".join(content))


def _moments(record: RunRecord, quantity: _Quantity) -> list[_Moment]:
    """Mean over the devices, and the smallest and largest of them, in at most MOST_BUCKETS buckets."""
    lines = [line for line in record.timelines if _serves(line, record, quantity)]
    if not lines:
        return []
    times = [time for line in lines for time in line.time_s]
    if not times:
        return []
    begin, longest = min(times), max(line.bucket_s for line in lines)
    bucket_s = max(longest, (max(times) - begin) / MOST_BUCKETS)
    gathered: dict[int, tuple[list[float], list[float]]] = {}
    for line in lines:
        for time, mean, largest in zip(
            line.time_s, getattr(line, quantity.mean), getattr(line, quantity.largest), strict=True
        ):
            if mean is not None:
                means, peaks = gathered.setdefault(int((time - begin) / bucket_s), ([], []))
                means.append(mean * quantity.factor)
                peaks.append((mean if largest is None else largest) * quantity.factor)
    return [
        _Moment(begin + (place + 0.5) * bucket_s, sum(means) / len(means), min(means), max(peaks))
        for place, (means, peaks) in sorted(gathered.items())
    ]


def _serves(line: Timeline, record: RunRecord, quantity: _Quantity) -> bool:
    if not any(value is not None for value in getattr(line, quantity.mean)):
        return False
    return line.scope == record.device_scope or quantity.of_any_scope


def _pieces(moments: Sequence[_Moment]) -> list[list[_Moment]]:
    """The moments in runs without a gap: a line never crosses a time without samples."""
    steps = sorted(after.time_s - before.time_s for before, after in zip(moments, moments[1:], strict=False))
    usual = steps[len(steps) // 2] if steps else 0.0
    pieces: list[list[_Moment]] = [[moments[0]]]
    for before, after in zip(moments, moments[1:], strict=False):
        if after.time_s - before.time_s > 3.5 * usual:
            pieces.append([])
        pieces[-1].append(after)
    return pieces


def _absence(record: RunRecord, quantity: _Quantity) -> str:
    metric = {"memory, GB": "amu_gb", "utilization, %": "pcu", "power, W": "aec_w"}[quantity.title]
    reason = record.unavailable.get(metric, "no samples were kept")
    return f"{quantity.title.partition(',')[0]}: n/a, {reason}."
