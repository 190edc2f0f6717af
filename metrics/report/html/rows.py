"""Plots with one row a run: bars with confidence intervals, and distributions of step times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from efficientbench.metrics.report.html.svg import (
    CHARACTER,
    Look,
    Scale,
    axis_x,
    figure,
    line,
    mark,
    rect,
    svg,
    text,
    told,
)

WIDTH = 400
ROW = 19
TOP = 8
_LONGEST = 24
"""Characters of a name that fit beside a row."""


@dataclass(frozen=True)
class Bar:
    """One run's figure."""

    run: int
    name: str
    look: Look
    value: float | None
    low: float | None = None
    high: float | None = None
    """The 95 % confidence interval."""


def bars(title: str, values: Sequence[Bar], form: Callable[[float], str], note: str = "") -> str:
    """Bars from zero, the interval as a whisker, the figure beside each."""
    left = _left([bar.name for bar in values])
    right = WIDTH - 62
    reach = [edge for bar in values for edge in (bar.value, bar.high) if edge is not None]
    scale = Scale.over(reach or [1.0], left, right, zero=True, margin=0.0)
    parts = [line(left, TOP, left, TOP + ROW * len(values), "base")]
    for place, bar in enumerate(values):
        y = TOP + ROW * place
        content = [rect(0, y, WIDTH, ROW, "hit"), text(left - 7, y + 13, cut(bar.name), "label", "end")]
        if bar.value is None:
            content.append(text(left + 6, y + 13, "n/a", "tick"))
            parts.append(told(bar.run, f"{bar.name}: n/a", "".join(content)))
            continue
        told_text = f"{bar.name}: {form(bar.value)}"
        content.append(rect(left, y + 3.5, scale(bar.value) - left, ROW - 7, f"bar c{bar.look.colour}"))
        end = scale(bar.value)
        if bar.low is not None and bar.high is not None:
            end = max(end, scale(bar.high))
            middle = y + ROW / 2
            content += [line(scale(bar.low), middle, scale(bar.high), middle, "whisker")]
            content += [line(scale(at), middle - 4, scale(at), middle + 4, "whisker") for at in (bar.low, bar.high)]
            told_text += f" (95 % interval {form(bar.low)} to {form(bar.high)})"
        content.append(text(end + 6, y + 13, form(bar.value), "value"))
        parts.append(told(bar.run, told_text, "".join(content)))
    return figure(title, svg(WIDTH, TOP + ROW * len(values) + 6, f"{title}, one bar a run", parts), note)


@dataclass(frozen=True)
class Spread:
    """One run's step times at 0, 1, …, 100 %."""

    run: int
    name: str
    look: Look
    percentiles_s: Sequence[float]


def spreads(title: str, values: Sequence[Spread], relative: bool, note: str = "") -> str:
    """For each run its median, its middle half (box) and its middle 98 % (line), in ms or in % of its own median."""
    left = _left([spread.name for spread in values])
    right = WIDTH - 14
    shown = {spread.run: _shown(spread, relative) for spread in values}
    reach = [edge for points in shown.values() for edge in (points[1], points[99])]
    wide = min(reach) > 0 and max(reach) / min(reach) > 20
    bottom = TOP + ROW * len(values) + 4
    scale = Scale.over(reach, left, right, log=wide)
    unit = "% of the run's median" if relative else "ms a step"
    parts = [axis_x(scale, TOP, bottom, unit)]
    for place, spread in enumerate(values):
        points = shown[spread.run]
        y = TOP + ROW * place + ROW / 2 + 1
        colour = f"c{spread.look.colour}"
        content = [
            rect(0, y - ROW / 2, WIDTH, ROW, "hit"),
            text(left - 7, y + 4, cut(spread.name), "label", "end"),
            line(scale(points[1]), y, scale(points[99]), y, f"reach {colour}"),
            rect(scale(points[25]), y - 5, max(scale(points[75]) - scale(points[25]), 1), 10, f"box {colour}"),
            line(scale(points[50]), y - 6.5, scale(points[50]), y + 6.5, "median"),
        ]
        if points[100] > points[99] and (wide or points[100] <= scale.high):
            content.append(mark(scale(points[100]), y, Look(spread.look.colour, 0), "point off", 2.2))
        milliseconds = [spread.percentiles_s[at] * 1e3 for at in (0, 25, 50, 75, 99, 100)]
        told_text = "{}: min {:,.1f}, quartiles {:,.1f} {:,.1f} {:,.1f}, p99 {:,.1f}, max {:,.1f} ms".format(
            spread.name, *milliseconds
        )
        parts.append(told(spread.run, told_text, "".join(content)))
    return figure(title, svg(WIDTH, bottom + 36, f"{title}, one row a run", parts), note)


def _shown(spread: Spread, relative: bool) -> list[float]:
    unit = 100 / (spread.percentiles_s[50] or 1.0) if relative else 1e3
    return [value * unit for value in spread.percentiles_s]


def cut(name: str) -> str:
    """A name that fits beside a row."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _left(names: Sequence[str]) -> float:
    return 12 + CHARACTER * max((len(cut(name)) for name in names), default=0)
