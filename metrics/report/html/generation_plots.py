"""Plots of generation against the length of the context: decode tokens/s, and the bytes of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from efficientbench.metrics.records.generation import GenerationRow
from efficientbench.metrics.report.generation import Generated
from efficientbench.metrics.report.html.svg import (
    Figure,
    Labels,
    Look,
    Run,
    Scale,
    axis_x,
    axis_y,
    key_of,
    line,
    looks,
    mark,
    marked,
    path,
    short,
    svg,
)

WIDTH = 400
LEFT, RIGHT, TOP, BOTTOM = 46, 388, 30, 256
_WIDE = 8.0
"""Figures that span more than this factor get a logarithmic axis."""


@dataclass(frozen=True)
class Point:
    """A figure at a length of the context, with its 95 % interval where one is known."""

    context: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Model:
    """What the plots show of one model."""

    number: int
    """By which the page lights up the run's other marks."""
    name: str
    look: Look
    rows: Sequence[GenerationRow]


@dataclass(frozen=True)
class Line:
    """The points of one model, by ascending context."""

    number: int
    name: str
    look: Look
    points: tuple[Point, ...]


def generation_figures(generated: Sequence[Generated], runs: Sequence[Run]) -> list[Figure]:
    """Plot decode tokens/s of each batch, and the cache of a sequence, one line for each model.

    Models on another device, or in another dtype, have plots of their own.
    """
    look = _looks(generated, runs)
    alike: dict[tuple[str, str], list[Model]] = {}
    for place, each in enumerate(generated):
        number = len(runs) + place if each.trained is None else runs[each.trained].number
        model = Model(number, each.name, look[each.record.variant], each.record.rows)
        alike.setdefault((each.record.device_name, each.record.dtype), []).append(model)
    figures = []
    for (device_name, dtype), models in alike.items():
        where = f", {device_name}, {dtype}" if len(alike) > 1 else ""
        batches = {row.batch for model in models for row in model.rows if row.failure is None}
        for batch in sorted(batches):
            title = f"Decode tokens/s, batch {batch:,}{where}"
            figures += _figure(title, "tokens/s of the whole batch", models, partial(_speed, batch))
        figures += _figure(f"Cache of one sequence{where}", "MB", models, _cache)
    return figures


def generation_legend(generated: Sequence[Generated], runs: Sequence[Run]) -> list[tuple[Markup, str]]:
    """Return the mark and the name of each variant that the plots show."""
    look = _looks(generated, runs)
    return [(key_of(variant, look[variant]), variant) for variant in dict.fromkeys(_variants(generated))]


def _variants(generated: Sequence[Generated]) -> list[str]:
    return [each.record.variant for each in generated]


def _looks(generated: Sequence[Generated], runs: Sequence[Run]) -> dict[str, Look]:
    return looks([*(run.record.variant for run in runs), *_variants(generated)])


def _figure(
    title: str, label: str, models: Sequence[Model], point: Callable[[GenerationRow], Point | None]
) -> list[Figure]:
    """Return the plot of the models that have points, if any has; the first row of a context counts."""
    lines = []
    for model in models:
        points: dict[int, Point] = {}
        for made in filter(None, map(point, model.rows)):
            points.setdefault(made.context, made)
        if points:
            ascending = tuple(points[context] for context in sorted(points))
            lines.append(Line(model.number, model.name, model.look, ascending))
    return [Figure(title, _plot(title, label, lines))] if lines else []


def _speed(batch: int, row: GenerationRow) -> Point | None:
    """Return the tokens a second of rows of this batch; their interval is that of the time per output token."""
    if row.batch != batch:
        return None
    value, time_s = row.value("decode_tokens_per_s"), row.value("decode_time_s")
    low, high = row.value("decode_time_s_ci_low"), row.value("decode_time_s_ci_high")
    if value is None:
        return None
    if low is None or high is None or low <= 0:
        return Point(_context(row), value)
    return Point(_context(row), value, value * time_s / high, value * time_s / low)


def _cache(row: GenerationRow) -> Point | None:
    return None if row.cache_bytes is None else Point(_context(row), row.cache_bytes / 1e6)


def _context(row: GenerationRow) -> int:
    return row.prompt_tokens + row.max_new_tokens


def _plot(title: str, label: str, lines: Sequence[Line]) -> Markup:
    """Plot a line for each model, with whiskers for intervals and its name at the end where there is room."""
    points = [point for each in lines for point in each.points]
    values = [value for point in points for value in (point.value, point.low, point.high) if value is not None]
    contexts = [point.context for point in points]
    wide = min(values) > 0 and max(values) / min(values) > _WIDE
    x = Scale.over(contexts, LEFT, RIGHT - 62, log=max(contexts) > 4 * min(contexts), margin=0.05)
    y = Scale.over(values, BOTTOM, TOP, zero=not wide, log=wide, margin=0.08)
    parts = [axis_x(x, TOP, BOTTOM, "tokens of the context, prompt and new"), axis_y(y, LEFT, RIGHT, label)]
    labels = Labels((LEFT, TOP - 10, WIDTH, BOTTOM + 4))
    for each in sorted(lines, key=lambda line: line.points[-1].value):
        content: list[str] = []
        if len(each.points) > 1:
            content.append(path([(x(at.context), y(at.value)) for at in each.points], f"line c{each.look.colour}"))
        for at in each.points:
            if at.low is not None and at.high is not None:
                content.append(line(x(at.context), y(at.low), x(at.context), y(at.high), "whisker"))
            content.append(mark(x(at.context), y(at.value), each.look, "point on", 3.2))
        last = each.points[-1]
        content.append(labels.place(each.name, x(last.context), y(last.value), beside_only=True))
        texts = (f"{short(at.value)} at {at.context:,}" for at in each.points)
        parts.append(marked(each.number, f"{each.name}: {', '.join(texts)}", *content))
    return svg(WIDTH, 300, f"{title}, one line a model", parts)
