"""What a loss costs: validation loss against a cost, and the runs that no other beats in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from efficientbench.metrics.report.html.labels import Placed, label
from efficientbench.metrics.report.html.svg import Look, Scale, axis_x, axis_y, figure, mark, path, svg, told

WIDTH, HEIGHT = 400, 320
LEFT, RIGHT, TOP, BOTTOM = 46, 388, 30, 276
_ROOM = (LEFT - 2, TOP - 18, WIDTH, BOTTOM)
_WIDE = 20.0
"""A cost that spans more than this factor gets a logarithmic axis."""


@dataclass(frozen=True)
class Point:
    """One run."""

    run: int
    name: str
    cost: float
    loss: float
    look: Look
    group: str
    """Runs of one group can be compared: one front each."""


def pareto(
    title: str,
    cost_label: str,
    points: Sequence[Point],
    better: Literal["lower", "higher"],
    form: Callable[[float], str],
    note: str,
) -> str:
    """The plot of one cost. Filled marks are on their group's front, hollow ones are beaten."""
    costs = [point.cost for point in points]
    wide = min(costs) > 0 and max(costs) / min(costs) > _WIDE
    x = Scale.over(costs, LEFT, RIGHT, log=wide, margin=0.1)
    y = Scale.over([point.loss for point in points], BOTTOM, TOP, margin=0.1)
    parts = [axis_x(x, TOP, BOTTOM, f"{cost_label} ({better} is better)"), axis_y(y, LEFT, RIGHT, "validation loss")]
    on_front: set[int] = set()
    for group in dict.fromkeys(point.group for point in points):
        best = front([point for point in points if point.group == group], better)
        on_front |= {point.run for point in best}
        if len(best) > 1:
            parts.append(path(_steps(best, x, y), "front"))
    placed = Placed([(x(point.cost) - 5, y(point.loss) - 5, x(point.cost) + 5, y(point.loss) + 5) for point in points])
    for point in sorted(points, key=lambda point: point.run not in on_front):
        kind = "on" if point.run in on_front else "off"
        at = x(point.cost), y(point.loss)
        content = mark(*at, point.look, f"point {kind}") + label(point.name, *at, placed, _ROOM)
        parts.append(told(point.run, f"{point.name}: {form(point.cost)}, loss {point.loss:.3f}", content))
    return figure(title, svg(WIDTH, HEIGHT, f"{title}, one point a run", parts), note)


def front(points: Sequence[Point], better: Literal["lower", "higher"]) -> list[Point]:
    """The points that no other beats in both, from the cheapest on."""
    sign = 1 if better == "lower" else -1
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (sign * point.cost, point.loss)):
        if not best or point.loss < best[-1].loss:
            best.append(point)
    return best


def _steps(best: Sequence[Point], x: Scale, y: Scale) -> list[tuple[float, float]]:
    corners = [(x(best[0].cost), y(best[0].loss))]
    for before, point in zip(best, best[1:], strict=False):
        corners += [(x(point.cost), y(before.loss)), (x(point.cost), y(point.loss))]
    return corners
