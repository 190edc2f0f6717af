"""Plots of a sweep over its axes, which a run's label has as `key=value`: curves of one axis, heat maps of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from efficientbench.basics.grouped import grouped
from efficientbench.metrics.records.figures import WITH
from efficientbench.metrics.records.record import FIGURES
from efficientbench.metrics.report.headline import HEADLINE
from efficientbench.metrics.report.plots.line_plots import Line, Point, plot_lines
from efficientbench.metrics.report.plots.svg import Figure, Run, marked, rect, short, svg, text

METRICS = ("validation_loss", "tokens_per_s")
"""Figures that are drawn over the axes."""
WIDTH = 400
LEFT, RIGHT, TOP, ROW = 62, 388, 30, 30
_FAINTEST, _DARKEST = 0.06, 0.75
"""Opacity of the worst cell of a heat map and of the best."""
_TEXT = 44
"""Width of a cell that holds its figure."""


@dataclass(frozen=True)
class _Swept:
    """A run of a sweep with its place on each axis."""

    run: Run
    axes: Mapping[str, str]
    """Axis → the value, as the label has it."""
    name: str
    """What the runs of a line or a map share: variant, size, and the label's own text."""

    def value(self, metric: str) -> float | None:
        """Return a figure; None where it is absent, or the loss of a speed-only run."""
        if metric == "validation_loss" and self.run.record.speed_only_reason:
            return None
        found = getattr(self.run.record, metric)
        return None if found is None else float(found)


def axis_curves(runs: Sequence[Run]) -> list[Figure]:
    """Return a plot of each figure over each axis of numbers that is a sweep's only one, a line for each model."""
    figures = []
    for names, swept in _sweeps(runs, axes=1):
        axis = names[0]
        if not all(_is_number(each.axes[axis]) for each in swept):
            continue
        for metric in METRICS:
            lines = [line for line in _lines(axis, metric, swept) if len(line.points) > 1]
            if lines:
                title = f"{HEADLINE[metric].title} over {axis}"
                label = f"{HEADLINE[metric].title} ({FIGURES[metric].better} is better)"
                figures.append(Figure(title, plot_lines(title, axis, label, lines, lambda value: f"{value:g}")))
    return figures


def _lines(axis: str, metric: str, swept: Sequence[_Swept]) -> Iterator[Line]:
    for name, members in grouped((each.name, each) for each in swept).items():
        found = {float(each.axes[axis]): value for each in members if (value := each.value(metric)) is not None}
        points = tuple(Point(at, found[at]) for at in sorted(found))
        yield Line(members[0].run.number, name, members[0].run.look, points)


def axis_maps(runs: Sequence[Run]) -> list[Figure]:
    """Return a heat map of each figure for each model whose sweep has two axes."""
    figures = []
    for (rows, columns), swept in _sweeps(runs, axes=2):
        for name, members in grouped((each.name, each) for each in swept).items():
            for metric in METRICS:
                known = [each for each in members if each.value(metric) is not None]
                if len({each.axes[rows] for each in known}) > 1 and len({each.axes[columns] for each in known}) > 1:
                    title = f"{name}: {HEADLINE[metric].title} by {rows} and {columns}"
                    figures.append(Figure(title, _map(title, rows, columns, metric, known), "Darker is better."))
    return figures


def _map(title: str, rows: str, columns: str, metric: str, known: Sequence[_Swept]) -> Markup:
    down, across = (_ordered(each.axes[axis] for each in known) for axis in (rows, columns))
    width, bottom = (RIGHT - LEFT) / len(across), TOP + ROW * len(down)
    values = [each.value(metric) or 0.0 for each in known]
    low, high = min(values), max(values)
    parts = [text(4, TOP - 10, rows, "axis"), text(RIGHT, bottom + 30, columns, "axis", "end")]
    for place, value in enumerate(down):
        parts.append(text(LEFT - 6, TOP + ROW * (place + 0.5) + 4, value[:9], "tick", "end"))
    for place, value in enumerate(across):
        parts.append(text(LEFT + width * (place + 0.5), bottom + 14, value[:9], "tick", "middle"))
    for each, figure in zip(known, values, strict=True):
        x = LEFT + width * across.index(each.axes[columns])
        y = TOP + ROW * down.index(each.axes[rows])
        part = (figure - low) / (high - low) if high > low else 1.0
        good = part if FIGURES[metric].better == "higher" else 1 - part
        shown = HEADLINE[metric].text(figure)
        drawn = [
            rect(x, y, width, ROW, "heat c0", fill_opacity=f"{_FAINTEST + (_DARKEST - _FAINTEST) * good:.3f}"),
            text(x + width / 2, y + ROW / 2 + 4, shown if width >= _TEXT else short(figure), "value", "middle"),
        ]
        parts.append(marked(each.run.number, f"{each.run.name}: {shown}", *drawn))
    return svg(WIDTH, bottom + 38, title, parts)


def _sweeps(runs: Sequence[Run], axes: int) -> Iterator[tuple[tuple[str, ...], list[_Swept]]]:
    """Yield the names of axes, and the completed runs that have a value of each of these alone."""
    swept = [found for run in runs if run.record.status == "completed" and (found := _swept(run)) is not None]
    by_axes = groupby(sorted(swept, key=lambda each: tuple(each.axes)), key=lambda each: tuple(each.axes))
    yield from ((names, list(members)) for names, members in by_axes if len(names) == axes)


def _swept(run: Run) -> _Swept | None:
    """Return a run's place; None for one of no sweep, or whose label was too long to be kept whole."""
    label = run.record.config.get("label")
    if not isinstance(label, str) or "~" in label:
        return None
    parts = [part.partition("=") for part in label.split("__")]
    axes = {key: value for key, sign, value in parts if sign}
    # An axis of kinds of layers says itself what each run has in place of its variant's.
    over_kinds = any(key.endswith("kind") for key in axes)
    model = run.record.backbone.partition(WITH)[0] if over_kinds else run.record.backbone
    own = [model, *(key for key, sign, _ in parts if not sign)]
    return _Swept(run, axes, "_".join(own)) if axes else None


def _ordered(values: Iterator[str]) -> list[str]:
    """Return each value once, numbers by their size."""
    once = list(dict.fromkeys(values))
    return sorted(once, key=float) if all(map(_is_number, once)) else once


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
