"""Plots of the validation loss: against a cost of the run, and over the course of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from efficientbench.metrics.analysis.conditions import group
from efficientbench.metrics.records.figure import Better
from efficientbench.metrics.records.record import FIGURES
from efficientbench.metrics.report.headline import HEADLINE
from efficientbench.metrics.report.plots.svg import (
    Figure,
    Labels,
    Run,
    Scale,
    axis_x,
    axis_y,
    mark,
    marked,
    path,
    short,
    svg,
)

WIDTH = 400
LEFT, RIGHT, TOP = 46, 388, 30
_WIDE_COSTS, _WIDE_CURVES = 20.0, 8.0
"""Factors, in plots of costs and of curves: a cost that spans more between runs gets a logarithmic axis."""


@dataclass(frozen=True)
class Point:
    """One run's cost and its validation loss."""

    run: Run
    cost: float
    loss: float
    group: str
    """Text that comparable runs share; each group has a front of its own."""


def cost_figures(runs: Sequence[Run]) -> list[Figure]:
    """Plot the validation loss against energy, throughput and memory."""
    figures = []
    for metric, title, label in (
        ("energy_j_per_token", "Loss against energy", "J/token"),
        ("tokens_per_s", "Loss against throughput", "tokens/s"),
        ("amu_gb", "Loss against memory", "AMU, GB"),
    ):
        points = _points(runs, metric)
        missing = len(runs) - len(points)
        if not points:
            lacking = [run.record.unavailable for run in runs]
            flagged = [run.record.speed_only_reason for run in runs]
            reasons = dict.fromkeys(
                why.get(metric) or why.get("validation_loss") or f"speed only: {only}"
                for why, only in zip(lacking, flagged, strict=True)
            )
            figures.append(Figure(title, Markup(""), f"n/a: {'; '.join(reasons)}"))
            continue
        note = f"{missing} of {len(runs)} runs have no such figure, or are speed only." if missing else ""
        better, form = FIGURES[metric].better or "lower", HEADLINE[metric].text
        figures.append(Figure(title, _pareto(title, label, points, better, form), note))
    return figures


def _points(runs: Sequence[Run], metric: str) -> list[Point]:
    points = []
    for run in runs:
        cost, loss = getattr(run.record, metric), run.record.validation_loss
        if cost is not None and loss is not None and not run.record.speed_only_reason:
            points.append(Point(run, cost, loss, group(run.record, energy=metric == "energy_j_per_token")))
    return points


def _pareto(title: str, label: str, points: Sequence[Point], better: Better, form: Callable[[float], str]) -> Markup:
    """Plot the loss against one cost. Filled marks are on their group's front, hollow ones are not."""
    bottom = 276
    costs = [point.cost for point in points]
    wide = min(costs) > 0 and max(costs) / min(costs) > _WIDE_COSTS
    x = Scale.over(costs, LEFT, RIGHT, log=wide, margin=0.1)
    y = Scale.over([point.loss for point in points], bottom, TOP, margin=0.1)
    parts = [axis_x(x, TOP, bottom, f"{label} ({better} is better)"), axis_y(y, LEFT, RIGHT, "validation loss")]
    on_front: set[int] = set()
    for name in dict.fromkeys(point.group for point in points):
        best = front([point for point in points if point.group == name], better)
        on_front |= {point.run.number for point in best}
        if len(best) > 1:
            parts.append(path(_stairs(best, x, y), "front"))
    boxes = [(x(point.cost) - 5, y(point.loss) - 5, x(point.cost) + 5, y(point.loss) + 5) for point in points]
    labels = Labels((LEFT - 2, TOP - 18, WIDTH, bottom), boxes)
    # Runs on a front first, so that their labels find room.
    for point in sorted(points, key=lambda point: point.run.number not in on_front):
        kind = "point on" if point.run.number in on_front else "point off"
        at = x(point.cost), y(point.loss)
        tooltip = f"{point.run.name}: {form(point.cost)}, loss {point.loss:.3f}"
        drawn = mark(*at, point.run.look, kind), labels.place(point.run.name, *at)
        parts.append(marked(point.run.number, tooltip, *drawn))
    return svg(WIDTH, 320, f"{title}, one point a run", parts)


def front(points: Sequence[Point], better: Better) -> list[Point]:
    """Return the points that no other point beats in both cost and loss, from the best cost on."""
    sign = 1 if better == "lower" else -1
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (sign * point.cost, point.loss)):
        if not best or point.loss < best[-1].loss:
            best.append(point)
    return best


def _stairs(best: Sequence[Point], x: Scale, y: Scale) -> list[tuple[float, float]]:
    corners = [(x(best[0].cost), y(best[0].loss))]
    for before, point in zip(best, best[1:], strict=False):
        corners += [(x(point.cost), y(before.loss)), (x(point.cost), y(point.loss))]
    return corners


def curve_figures(runs: Sequence[Run]) -> list[Figure]:
    """Plot each run's validation losses against the tokens, seconds and joules until the validation."""
    figures = []
    for field, title, label in (
        ("tokens", "Loss by tokens", "tokens trained on"),
        ("train_s", "Loss by time", "s of training, measured steps"),
        ("energy_j", "Loss by energy", "J, measured steps"),
    ):
        # A resumed run has measured its last attempt alone, a branch its own steps: curves would begin in the middle.
        known = [run for run in runs if field == "tokens" or not run.record.begins_late]
        curves = [(run, points) for run in known if len(points := _curve(run, field)) > 1]
        if curves:
            figures.append(Figure(title, _curves(title, label, curves)))
    return figures


def _curve(run: Run, field: str) -> list[tuple[float, float]]:
    """Return the run's validations as (cost, loss)."""
    points = [(getattr(point, field), point.loss) for point in run.record.quality_curve]
    return [(cost, loss) for cost, loss in points if cost is not None and loss is not None]


def _curves(title: str, label: str, curves: Sequence[tuple[Run, list[tuple[float, float]]]]) -> Markup:
    """Plot a line for each run, with its name at the end where there is room."""
    bottom = 256
    points = [point for _, curve in curves for point in curve]
    ends = [curve[-1][0] for _, curve in curves]
    wide = min(cost for cost, _ in points) > 0 and max(ends) / min(ends) > _WIDE_CURVES
    x = Scale.over([cost for cost, _ in points], LEFT, RIGHT - 56, log=wide, margin=0.03)
    y = Scale.over([loss for _, loss in points], bottom, TOP, margin=0.08)
    parts = [axis_x(x, TOP, bottom, label), axis_y(y, LEFT, RIGHT, "validation loss")]
    labels = Labels((LEFT, TOP, WIDTH, bottom))
    for run, curve in sorted(curves, key=lambda run_and_curve: run_and_curve[1][-1][1]):
        cost, loss = curve[-1]
        drawn = path([(x(at), y(value)) for at, value in curve], f"line c{run.look.colour}")
        name = labels.place(run.name, x(cost), y(loss), beside_only=True)
        parts.append(marked(run.number, f"{run.name}: loss {loss:.3f} at {short(cost)}", drawn, name))
    return svg(WIDTH, 300, f"{title}, one line a run", parts)
