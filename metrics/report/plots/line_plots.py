"""A plot of lines with their points' intervals as whiskers, and each line's name at its end where there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from efficientbench.metrics.report.plots.svg import (
    Labels,
    Look,
    Scale,
    axis_x,
    axis_y,
    line,
    mark,
    marked,
    path,
    short,
    svg,
)

WIDTH = 400
LEFT, RIGHT, TOP, BOTTOM = 46, 388, 30, 256
_ASIDE = 4.0
_WIDE = 8.0
"""Figures that span more than this factor get a logarithmic axis."""


@dataclass(frozen=True)
class Point:
    """A figure at a value of the horizontal axis, with its 95 % interval where one is known."""

    at: float
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """The points of one model, in ascending order."""

    number: int
    """Number by which the page highlights the run's other marks."""
    name: str
    look: Look
    points: tuple[Point, ...]


def plot_lines(
    title: str, label_x: str, label_y: str, lines: Sequence[Line], text_x: Callable[[float], str] = short
) -> Markup:
    """Plot the lines on a vertical axis from zero, or on a logarithmic one where the figures span a large factor.

    text_x: writes a value of the horizontal axis.
    """
    points = [point for each in lines for point in each.points]
    values = [value for point in points for value in (point.value, point.low, point.high) if value is not None]
    places = [point.at for point in points]
    wide = min(values) > 0 and max(values) / min(values) > _WIDE
    x = Scale.over(places, LEFT, RIGHT - 62, log=max(places) > 2 * min(places), margin=0.05)
    y = Scale.over(values, BOTTOM, TOP, zero=not wide, log=wide, margin=0.08)
    parts = [axis_x(x, TOP, BOTTOM, label_x, text_x), axis_y(y, LEFT, RIGHT, label_y)]
    labels = Labels((LEFT, TOP - 10, WIDTH, BOTTOM + 4))
    for place, each in enumerate(sorted(lines, key=lambda line: line.points[-1].value)):
        content: list[str] = []
        # Intervals at the same place stand side by side.
        aside = _ASIDE * (place - (len(lines) - 1) / 2)
        if len(each.points) > 1:
            content.append(path([(x(point.at), y(point.value)) for point in each.points], f"line c{each.look.colour}"))
        for point in each.points:
            if point.low is not None and point.high is not None:
                own = x(point.at) + aside
                content.append(line(own, y(point.low), own, y(point.high), f"line c{each.look.colour}"))
            content.append(mark(x(point.at), y(point.value), each.look, "point on", 3.2))
        last = each.points[-1]
        content.append(labels.place(each.name, x(last.at), y(last.value), beside_only=True))
        texts = (f"{short(point.value)} at {text_x(point.at)}" for point in each.points)
        parts.append(marked(each.number, f"{each.name}: {', '.join(texts)}", *content))
    return svg(WIDTH, 300, f"{title}, one line a model", parts)
