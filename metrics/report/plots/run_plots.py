"""Plots of single runs: a run's devices over time, and the load of its experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from efficientbench.metrics.formulas.device_use import Timeline
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.plots.svg import (
    Figure,
    Run,
    Scale,
    axis_x,
    axis_y,
    marked,
    path,
    rect,
    short,
    svg,
    text,
)

WIDTH = 400
LEFT, RIGHT = 46, 388
PANEL = 72
GAP = 30
MOST_BUCKETS = 200
"""Most points of a line: more cannot be distinguished at its width."""


@dataclass(frozen=True)
class _Quantity:
    title: str
    metric: str
    """The record's figure of the quantity, whose reason explains an n/a."""
    mean: str
    largest: str
    """Field of a timeline with each bucket's largest sample; `mean` names the field with its mean."""
    factor: float
    of_any_scope: bool
    """Whether a meter beside the devices may measure the quantity."""


_QUANTITIES = (
    _Quantity("memory, GB", "amu_gb", "memory_used_gb_mean", "memory_used_gb_max", 1, False),
    _Quantity("utilization, %", "pcu", "utilization_mean", "utilization_max", 100, False),
    _Quantity("power, W", "aec_w", "power_w_mean", "power_w_max", 1, True),
)


@dataclass(frozen=True)
class _Moment:
    time_s: float
    mean: float
    low: float
    high: float


def over_time(runs: Sequence[Run]) -> list[Figure]:
    """Plot memory, utilization and power of each run, one below the other on one axis of time."""
    return [figure for figure in map(_over_time, runs) if figure is not None]


def _over_time(run: Run) -> Figure | None:
    """Plot one run; None where its record has no samples."""
    record = run.record
    series = [(quantity, _moments(record, quantity)) for quantity in _QUANTITIES]
    drawn = [(quantity, moments) for quantity, moments in series if len(moments) > 1]
    if not drawn:
        return None
    times = [moment.time_s for _, moments in drawn for moment in moments]
    x = Scale.over(times, LEFT, RIGHT, margin=0.0)
    bottom = GAP + (PANEL + GAP) * (len(drawn) - 1) + PANEL
    parts = []
    for window in record.windows:
        parts.append(rect(x(window.begin_s), GAP, x(window.end_s) - x(window.begin_s), bottom - GAP, "window"))
    # A record of repeats has the first repeat's samples, and does not say which repeat was disturbed.
    for other in record.disturbances if record.repeats == 1 else ():
        begin = x(other.begin_s)
        band = rect(begin, GAP, max(x(other.end_s) - begin, 1.5), bottom - GAP, "disturbance")
        told = f"{run.name}\ndisturbed: {other.description} ({other.begin_s:,.0f} to {other.end_s:,.0f} s)"
        parts.append(marked(run.number, told, band))
    parts.append(axis_x(x, GAP, bottom, "s from the opening of the measured window"))
    for place, (quantity, moments) in enumerate(drawn):
        parts.append(_panel(run, quantity, moments, x, GAP + (PANEL + GAP) * place))
    absent = [_absence(record, quantity) for quantity, moments in series if len(moments) <= 1]
    return Figure(run.name, svg(WIDTH, bottom + 36, f"{run.name} over time", parts), " ".join(absent))


def _panel(run: Run, quantity: _Quantity, moments: Sequence[_Moment], x: Scale, top: float) -> Markup:
    highest = max(moment.high for moment in moments)
    y = Scale.over([100.0 if quantity.metric == "pcu" else highest], top + PANEL, top, zero=True)
    content = []
    for piece in _without_gaps(moments):
        band = [(x(moment.time_s), y(moment.high)) for moment in piece]
        band += [(x(moment.time_s), y(moment.low)) for moment in reversed(piece)]
        content.append(path(band, f"band c{run.look.colour}", closed=True))
        content.append(path([(x(moment.time_s), y(moment.mean)) for moment in piece], f"line c{run.look.colour}"))
    mean = sum(moment.mean for moment in moments) / len(moments)
    tooltip = f"{run.name}\n{quantity.title}: about {short(round(mean, 2))}, at most {short(round(highest, 2))}"
    return axis_y(y, LEFT, RIGHT, quantity.title) + marked(run.number, tooltip, *content)


def _moments(record: RunRecord, quantity: _Quantity) -> list[_Moment]:
    """Return the devices' mean, smallest and largest value in at most MOST_BUCKETS buckets."""
    lines = [line for line in record.timelines if _serves(line, record, quantity)]
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
    is_read = any(value is not None for value in getattr(line, quantity.mean))
    return is_read and (line.scope == record.device_scope or quantity.of_any_scope)


def _without_gaps(moments: Sequence[_Moment]) -> list[list[_Moment]]:
    """Split the moments where samples are missing, so that no line crosses the gap."""
    steps = sorted(after.time_s - before.time_s for before, after in zip(moments, moments[1:], strict=False))
    usual = steps[len(steps) // 2] if steps else 0.0
    pieces: list[list[_Moment]] = [[moments[0]]]
    for before, after in zip(moments, moments[1:], strict=False):
        if after.time_s - before.time_s > 3.5 * usual:
            pieces.append([])
        pieces[-1].append(after)
    return pieces


def _absence(record: RunRecord, quantity: _Quantity) -> str:
    reason = record.unavailable.get(quantity.metric, "no samples were kept")
    return f"{quantity.title.partition(',')[0]}: n/a, {reason}."


_EXPERTS_TOP = 22
_EXPERTS_ROW = 15
_LARGEST = 40
"""Width at the right for each layer's largest load over the mean."""
_FITS = 26
"""Least width of a cell that shows its number."""


def expert_figures(runs: Sequence[Run]) -> list[Figure]:
    """Plot the load of each run's experts: layers by experts, 1 for an even share of the tokens."""
    return [figure for figure in map(_expert_load, runs) if figure is not None]


def _expert_load(run: Run) -> Figure | None:
    """Plot a cell for each expert of each layer with experts: its tokens over the mean of its layer, and the largest.

    None without experts.
    """
    load = run.record.experts
    experts = max((len(layer) for layer in load.tokens_per_expert), default=0) if load else 0
    if load is None or not experts:
        return None
    layers = load.tokens_per_expert
    cell = (WIDTH - LEFT - 8 - _LARGEST) / experts
    parts = [text(LEFT, 12, "expert", "axis"), text(LEFT - 6, 12, "layer", "axis", "end")]
    parts.append(text(WIDTH - 8, 12, "largest", "axis", "end"))
    for number, (tokens, largest) in enumerate(zip(layers, load.load_imbalance, strict=False), start=1):
        y = _EXPERTS_TOP + _EXPERTS_ROW * (number - 1)
        if len(layers) <= 16 or number % 4 == 0 or number == 1:
            parts.append(text(LEFT - 6, y + 11, str(number), "tick", "end"))
        parts.append(text(WIDTH - 8, y + 11, f"{largest:.2f}", "tick", "end"))
        mean = sum(tokens) / len(tokens) or 1.0
        for expert, count in enumerate(tokens):
            share = f"{count:,} tokens, {count / mean:.2f} of an even share"
            tooltip = f"{run.name}, layer {number}\nexpert {expert + 1}: {share}"
            parts.append(marked(run.number, tooltip, *_cell(count / mean, LEFT + expert * cell, y, cell)))
    busiest = max(load.load_imbalance, default=1.0)
    note = f"1 is an even share. The busiest expert of any layer got {busiest:.2f} times its share."
    height = _EXPERTS_TOP + _EXPERTS_ROW * len(layers) + 6
    return Figure(run.name, svg(WIDTH, height, f"{run.name}: load of the experts by layer", parts), note)


def _cell(ratio: float, x: float, y: float, width: float) -> list[Markup]:
    # A share that is doubled or halved gets the full colour.
    strength = min(abs(math.log2(ratio)) if ratio > 0 else 1.0, 1.0)
    shade = f"{0.08 + 0.82 * strength:.2f}"
    content = [rect(x, y, width - 1, _EXPERTS_ROW - 1, "more" if ratio >= 1 else "less", fill_opacity=shade)]
    if width >= _FITS:
        kind = "value strong" if strength > 0.6 else "value"
        content.append(text(x + (width - 1) / 2, y + 11, f"{ratio:.2f}", kind, "middle"))
    return content
