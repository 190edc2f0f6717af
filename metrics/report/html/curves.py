"""Validation losses against what training had cost until then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.metrics.report.html.labels import Placed, label
from efficientbench.metrics.report.html.svg import Look, Scale, axis_x, axis_y, figure, path, short, svg, told

WIDTH, HEIGHT = 400, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 388, 30, 256
_WIDE = 8.0
"""A cost whose ends differ by more than this factor between runs gets a logarithmic axis."""


@dataclass(frozen=True)
class Curve:
    """One run's validations, as (cost, loss)."""

    run: int
    name: str
    look: Look
    points: Sequence[tuple[float, float]]


def curves(title: str, cost_label: str, runs: Sequence[Curve]) -> str:
    """A line for each run, its name at the end where there is room."""
    everything = [point for curve in runs for point in curve.points]
    ends = [curve.points[-1][0] for curve in runs]
    wide = min(cost for cost, _ in everything) > 0 and max(ends) / min(ends) > _WIDE
    x = Scale.over([cost for cost, _ in everything], LEFT, RIGHT - 56, log=wide, margin=0.03)
    y = Scale.over([loss for _, loss in everything], BOTTOM, TOP, margin=0.08)
    parts = [axis_x(x, TOP, BOTTOM, cost_label), axis_y(y, LEFT, RIGHT, "validation loss")]
    placed = Placed()
    room = (LEFT, TOP, WIDTH, BOTTOM)
    for curve in sorted(runs, key=lambda curve: curve.points[-1][1]):
        cost, loss = curve.points[-1]
        content = path([(x(at), y(value)) for at, value in curve.points], f"line c{curve.look.colour}")
        content += label(curve.name, x(cost), y(loss), placed, room, beside_only=True)
        parts.append(told(curve.run, f"{curve.name}: loss {loss:.3f} at {short(cost)}", content))
    return figure(title, svg(WIDTH, HEIGHT, f"{title}, one line a run", parts))
