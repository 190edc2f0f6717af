"""Plots with one row a run: bars with confidence intervals, and distributions of step times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from efficientbench.metrics.formulas.student import half_interval_95
from efficientbench.metrics.report.headline import HEADLINE, is_least
from efficientbench.metrics.report.plots.svg import (
    CHARACTER,
    Figure,
    Look,
    Run,
    Scale,
    axis_x,
    cut,
    line,
    mark,
    marked,
    rect,
    svg,
    text,
)

WIDTH = 400
ROW = 19
TOP = 8


@dataclass(frozen=True)
class _Bar:
    """One run's figure."""

    run: Run
    value: float | None
    low: float | None = None
    high: float | None = None
    """Upper end of the 95 % confidence interval, whose lower end is `low`."""
    least: bool = False
    """Whether the interval may be wider; see `is_least`."""


def metric_figures(runs: Sequence[Run]) -> list[Figure]:
    """Plot each headline figure: a bar for each run, with the interval where one is known."""
    figures = []
    for metric, shown in HEADLINE.items():
        values = [_bar(run, metric) for run in runs]
        if shown.plot and any(bar.value is not None for bar in values):
            figures.append(Figure(shown.plot, _bars(shown.plot, values, shown.text)))
    return figures


def _bar(run: Run, metric: str) -> _Bar:
    record = run.record
    value = getattr(record, metric)
    low = high = None
    least = metric in ("al_s", "tokens_per_s") and is_least(record)
    if record.al_s and record.al_s_ci_low and record.al_s_ci_high and value is not None:
        if metric == "al_s":
            low, high = record.al_s_ci_low, record.al_s_ci_high
        elif metric == "tokens_per_s" and record.al_s_ci_low > 0:  # every step has the same tokens
            low, high = value * record.al_s / record.al_s_ci_high, value * record.al_s / record.al_s_ci_low
    margin = None
    if metric == "validation_loss":
        margin = half_interval_95(record.validation_loss_se, record.validation_loss_se_values)
    deviation = record.repeat_std.get(metric)
    if deviation is not None and metric != "al_s":
        margin = half_interval_95(deviation / math.sqrt(record.repeats), record.repeats)
    if margin is not None and value is not None:
        low, high = value - margin, value + margin
    return _Bar(run, value, low, high, least)


def _bars(title: str, values: Sequence[_Bar], form: Callable[[float], str]) -> Markup:
    """Plot bars from zero, with the interval as a whisker and the figure beside it."""
    left, right = _left([bar.run for bar in values]), WIDTH - 62
    reach = [edge for bar in values for edge in (bar.value, bar.high) if edge is not None]
    scale = Scale.over(reach or [1.0], left, right, zero=True, margin=0.0)
    parts = [line(left, TOP, left, TOP + ROW * len(values), "base")]
    for place, bar in enumerate(values):
        y = TOP + ROW * place
        content = [rect(0, y, WIDTH, ROW, "hit"), text(left - 7, y + 13, cut(bar.run.name), "label", "end")]
        if bar.value is None:
            content.append(text(left + 6, y + 13, "n/a", "tick"))
            parts.append(marked(bar.run.number, f"{bar.run.name}: n/a", *content))
            continue
        tooltip = f"{bar.run.name}: {form(bar.value)}"
        content.append(rect(left, y + 3.5, scale(bar.value) - left, ROW - 7, f"bar c{bar.run.look.colour}"))
        end = scale(bar.value)
        if bar.low is not None and bar.high is not None:
            end = max(end, scale(bar.high))
            middle = y + ROW / 2
            content += [line(scale(bar.low), middle, scale(bar.high), middle, "whisker")]
            content += [line(scale(at), middle - 4, scale(at), middle + 4, "whisker") for at in (bar.low, bar.high)]
            tooltip += f" (95 % interval {'at least ' if bar.least else ''}{form(bar.low)} to {form(bar.high)})"
        content.append(text(end + 6, y + 13, form(bar.value), "value"))
        parts.append(marked(bar.run.number, tooltip, *content))
    return svg(WIDTH, TOP + ROW * len(values) + 6, f"{title}, one bar a run", parts)


def step_time_figures(runs: Sequence[Run]) -> list[Figure]:
    """Plot the distribution of every run's step times, absolute and against its own median."""
    titles = {"Step time": False, "Step time against the run's own median": True}
    return [Figure(title, _spreads(title, runs, relative)) for title, relative in titles.items() if runs]


def _spreads(title: str, runs: Sequence[Run], relative: bool) -> Markup:
    """Plot each run's median, middle half (box) and middle 98 % (line), in ms or in % of its own median."""
    left, right = _left(runs), WIDTH - 14
    percentiles = [_percentiles(run, relative) for run in runs]
    reach = [edge for points in percentiles for edge in (points[1], points[99])]
    wide = min(reach) > 0 and max(reach) / min(reach) > 20
    bottom = TOP + ROW * len(runs) + 4
    scale = Scale.over(reach, left, right, log=wide)
    parts = [axis_x(scale, TOP, bottom, "% of the run's median" if relative else "ms a step")]
    for place, (run, points) in enumerate(zip(runs, percentiles, strict=True)):
        y = TOP + ROW * place + ROW / 2 + 1
        colour = f"c{run.look.colour}"
        content = [
            rect(0, y - ROW / 2, WIDTH, ROW, "hit"),
            text(left - 7, y + 4, cut(run.name), "label", "end"),
            line(scale(points[1]), y, scale(points[99]), y, f"reach {colour}"),
            rect(scale(points[25]), y - 5, max(scale(points[75]) - scale(points[25]), 1), 10, f"box {colour}"),
            line(scale(points[50]), y - 6.5, scale(points[50]), y + 6.5, "median"),
        ]
        if points[100] > points[99] and (wide or points[100] <= scale.high):
            content.append(mark(scale(points[100]), y, Look(run.look.colour, 0), "point off", 2.2))
        least, low, middle, high, last, most = (_percentiles(run, False)[at] for at in (0, 25, 50, 75, 99, 100))
        tooltip = (
            f"{run.name}\nstep time, ms: min {least:,.1f}, quartiles {low:,.1f} {middle:,.1f} {high:,.1f}, "
            f"p99 {last:,.1f}, max {most:,.1f}"
        )
        parts.append(marked(run.number, tooltip, *content))
    return svg(WIDTH, bottom + 36, f"{title}, one row a run", parts)


def _percentiles(run: Run, relative: bool) -> list[float]:
    """Return the run's step times at 0, 1, …, 100 %, in ms or in % of their median."""
    times_s = run.record.step_time_percentiles_s or []
    unit = 100 / (times_s[50] or 1.0) if relative else 1e3
    return [time_s * unit for time_s in times_s]


def _left(runs: Sequence[Run]) -> float:
    return 12 + CHARACTER * max((len(cut(run.name)) for run in runs), default=0)
