"""Plots of generation over the context length: decode tokens/s, and the size of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from efficientbench.metrics.records.generation.generation import GenerationRow
from efficientbench.metrics.report.plots.line_plots import Line, Point, plot_lines
from efficientbench.metrics.report.plots.svg import Figure, Look, Run, key_of, looks
from efficientbench.metrics.report.sections.generation import Generated

CONTEXT = "tokens of the context, prompt and new"
"""Label of the horizontal axis."""


@dataclass(frozen=True)
class Model:
    """One model with the rows that the plots show."""

    number: int
    """Number by which the page highlights the run's other marks."""
    name: str
    look: Look
    rows: Sequence[GenerationRow]


def generation_figures(generated: Sequence[Generated], runs: Sequence[Run]) -> list[Figure]:
    """Plot decode tokens/s for each batch size, and the cache of a sequence, one line for each model.

    Models on another device, in another dtype, or with compiled steps have plots of their own.
    """
    look = _looks(generated, runs)
    alike: dict[tuple[str, str, str], list[Model]] = {}
    for place, each in enumerate(generated):
        number = len(runs) + place if each.trained is None else runs[each.trained].number
        record = each.record
        model = Model(number, each.name, look[record.variant], record.rows)
        alike.setdefault((record.device_name, record.dtype, record.steps), []).append(model)
    figures = []
    for (device_name, dtype, steps), models in alike.items():
        where = f", {device_name}, {dtype}" if len(alike) > 1 else ""
        where += ", compiled steps" if steps == "compiled" else ""
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
    """Return the plot of the models that have points, if any has; of several rows of a context, the first counts."""
    lines = []
    for model in models:
        points: dict[float, Point] = {}
        for made in filter(None, map(point, model.rows)):
            points.setdefault(made.at, made)
        if points:
            ascending = tuple(points[at] for at in sorted(points))
            lines.append(Line(model.number, model.name, model.look, ascending))
    return [Figure(title, plot_lines(title, CONTEXT, label, lines))] if lines else []


def _speed(batch: int, row: GenerationRow) -> Point | None:
    """Return the tokens/s of a row of this batch size; the interval is that of the time per output token."""
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
