"""Plots of generation against the length of the context: decode tokens/s, and the bytes of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from efficientbench.metrics.records.generation import GenerationRow
from efficientbench.metrics.report.generation import Generated
from efficientbench.metrics.report.html.line_plots import Line, Point, plot_lines
from efficientbench.metrics.report.html.svg import Figure, Look, Run, key_of, looks

CONTEXT = "tokens of the context, prompt and new"
"""Name of the horizontal axis."""


def generation_figures(generated: Sequence[Generated], runs: Sequence[Run]) -> list[Figure]:
    """Plot decode tokens/s of each batch, and the cache of a sequence, one line for each model."""
    rows = [row for each in generated for row in each.record.rows if row.failure is None]
    figures = []
    for batch in sorted({row.batch for row in rows}):
        title = f"Decode tokens/s, batch {batch:,}"
        drawn = _lines(generated, runs, [row for row in rows if row.batch == batch], _speed)
        figures += [Figure(title, plot_lines(title, CONTEXT, "tokens/s of the whole batch", drawn))] if drawn else []
    title = "Cache of one sequence"
    drawn = _lines(generated, runs, rows, _cache)
    return [*figures, *([Figure(title, plot_lines(title, CONTEXT, "MB", drawn))] if drawn else [])]


def generation_legend(generated: Sequence[Generated], runs: Sequence[Run]) -> list[tuple[Markup, str]]:
    """Return the mark and the name of each variant that the plots show."""
    look = _looks(generated, runs)
    return [(key_of(variant, look[variant]), variant) for variant in dict.fromkeys(_variants(generated))]


def _variants(generated: Sequence[Generated]) -> list[str]:
    return [each.record.variant for each in generated]


def _looks(generated: Sequence[Generated], runs: Sequence[Run]) -> dict[str, Look]:
    return looks([*(run.record.variant for run in runs), *_variants(generated)])


def _lines(
    generated: Sequence[Generated],
    runs: Sequence[Run],
    among: Sequence[GenerationRow],
    point: Callable[[GenerationRow], Point | None],
) -> list[Line]:
    """Return the lines of the models that have points; the first row of a context counts."""
    look = _looks(generated, runs)
    found = []
    for place, each in enumerate(generated):
        points: dict[float, Point] = {}
        for row in each.record.rows:
            made = point(row) if any(row is other for other in among) else None
            if made is not None:
                points.setdefault(made.at, made)
        if points:
            ascending = tuple(points[at] for at in sorted(points))
            number = len(runs) + place if each.trained is None else runs[each.trained].number
            found.append(Line(number, each.name, look[each.record.variant], ascending))
    return found


def _speed(row: GenerationRow) -> Point | None:
    """Return the tokens a second; their interval is that of the time per output token."""
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
