"""Plots of a set's differences from its baseline: one row a variant, one column a figure, with 95 % intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from efficientbench.metrics.analysis.rivals import QUESTIONS
from efficientbench.metrics.formulas.ratio import Ratio
from efficientbench.metrics.records.record import FIGURES
from efficientbench.metrics.report.answers import brief
from efficientbench.metrics.report.headline import HEADLINE
from efficientbench.metrics.report.plots.svg import (
    CHARACTER,
    MOST_RUNS,
    Figure,
    Scale,
    cut,
    element,
    line,
    marked,
    path,
    rect,
    svg,
    text,
)
from efficientbench.metrics.report.suites import Row, Suite

WIDTH = 960
TOP, ROW = 26, 21
LEAST_COLUMNS = 3
"""The number of columns that fill the width; fewer are no wider, since wide gaps part a row's words."""
VALUE = 82
"""Width of a difference's text, right of its interval."""
GAP = 14
_LEAST = math.log(1.02)
"""The narrowest range of a column: 2 %."""
_TICKS = (-0.9, -0.75, -0.5, -0.25, -0.1, -0.05, -0.02, -0.01, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 9, 99)


@dataclass(frozen=True)
class _Column:
    metric: str
    left: float
    scale: Scale
    """The scale of a ratio's logarithm."""


@dataclass(frozen=True)
class _Against:
    """The comparison of a row with the baseline."""

    row: Row
    ratios: dict[str, Ratio]
    """Figure → the ratio, row over baseline."""
    absent: dict[str, tuple[str, str]]
    """Figure without a ratio → the plot's text for it, and the reason."""

    @classmethod
    def of(cls, suite: Suite, place: int) -> _Against:
        """Compare the row at that index of the set with the baseline."""
        ratios: dict[str, Ratio] = {}
        absent: dict[str, tuple[str, str]] = {}
        differ = "; ".join(map(brief, suite.rivals.differences(suite.baseline, place)))
        for metric in QUESTIONS:
            ratio = suite.rivals.ratio(metric, suite.baseline, place)
            if ratio is not None:
                ratios[metric] = ratio
            elif differ:
                absent[metric] = "not compared", differ
            else:
                absent[metric] = "n/a", suite.rivals.why_not(metric, suite.baseline, place) or ""
        return cls(suite.rows[place], ratios, absent)


def difference_figures(suites: list[Suite]) -> list[Figure]:
    """Return a plot for each set of two or more rows, where a row has a figure."""
    return [figure for suite in suites if len(suite.rows) > 1 and (figure := _figure(suite))]


def _figure(suite: Suite) -> Figure | None:
    baseline = suite.rows[suite.baseline].name
    places = [place for place in range(len(suite.rows)) if place != suite.baseline][: MOST_RUNS - 1]
    rows = [_Against.of(suite, place) for place in places]
    left = 14 + CHARACTER * max(len(cut(row.marked)) for row in suite.rows)
    columns = _columns(suite, rows, left)
    if not columns:
        return None
    bottom = TOP + ROW * (len(places) + 1) + 4
    parts = [_head(column, bottom) for column in columns]
    parts.append(_baseline(suite, columns))
    for number, row in enumerate(rows, start=1):
        y, name = TOP + ROW * number, row.row.marked
        texts = [f"{HEADLINE[metric].title}: {_told(row, metric)}" for metric in QUESTIONS]
        cells = [_cell(row, column, y + ROW / 2) for column in columns]
        content = [rect(0, y, WIDTH, ROW, "hit"), text(left - 10, y + 14, cut(name), "label", "end"), *cells]
        told = "\n".join([f"{name} against {baseline} ({suite.title})", *texts])
        parts.append(marked(row.row.number, told, *content))
    title = f"{suite.title}: differences to {baseline}"
    rest = len(suite.rows) - 1 - len(places)
    note = f"{rest:,} more rows are in the table." if rest else ""
    return Figure(title, svg(WIDTH, bottom + 18, f"{title}, one row a variant, one column a figure", parts), note)


def _columns(suite: Suite, rows: list[_Against], left: float) -> list[_Column]:
    """Return a column for each figure that a row of the set has; tooltips say why the others are absent."""
    shown = [metric for metric in QUESTIONS if any(getattr(row.record, metric) is not None for row in suite.rows)]
    width = (WIDTH - left) / max(len(shown), LEAST_COLUMNS)
    columns = []
    for number, metric in enumerate(shown):
        ratios = [row.ratios[metric] for row in rows if metric in row.ratios]
        begin = left + number * width
        columns.append(_Column(metric, begin, _scale(ratios, begin, begin + width - VALUE - GAP)))
    return columns


def _scale(ratios: list[Ratio], begin: float, end: float) -> Scale:
    """Return a scale that holds 0 and every difference, and of the intervals as much as leaves the differences room."""
    points = [math.log(ratio.ratio) for ratio in ratios]
    reach = max([_LEAST, *(1.6 * abs(point) for point in points)])
    ends = [math.log(end) for ratio in ratios for end in (ratio.low, ratio.high) if end]
    held = [*points, *(min(max(end, -reach), reach) for end in ends)]
    low, high = min([-_LEAST / 2, *held]), max([_LEAST / 2, *held])
    margin = (high - low) * 0.04
    return Scale(low - margin, high + margin, begin, end)


def _head(column: _Column, bottom: float) -> Markup:
    """Return a column's title, its line at no difference, and the ticks at both ends."""
    metric, scale = column.metric, column.scale
    better = FIGURES[metric].better
    title = f"{HEADLINE[metric].title} ({better} is better)"
    zero = scale(0.0)
    parts = [text(column.left, 14, title, "axis"), line(zero, TOP - 2, zero, bottom, "zero")]
    parts.append(text(zero, bottom + 13, "0", "tick", "middle"))
    inside = [tick for tick in _TICKS if scale.low < math.log1p(tick) < scale.high]
    for tick in filter(None, (_outermost(inside, -1), _outermost(inside, 1))):
        x = scale(math.log1p(tick))
        if abs(x - zero) > 24:
            parts += [line(x, TOP - 2, x, bottom, "grid"), text(x, bottom + 13, _percent(1 + tick), "tick", "middle")]
    return Markup("").join(parts)


def _outermost(ticks: list[float], side: int) -> float:
    return max((tick for tick in ticks if tick * side > 0), key=abs, default=0.0)


def _baseline(suite: Suite, columns: list[_Column]) -> Markup:
    """Return the first row: the baseline's own figures, with which the other rows are compared."""
    row = suite.rows[suite.baseline]
    parts = [
        rect(0, TOP, WIDTH, ROW, "hit"),
        text(columns[0].left - 10, TOP + 14, cut(row.marked), "label strong", "end"),
    ]
    values = {metric: getattr(row.record, metric) for metric in QUESTIONS}
    shown = {each: "n/a" if value is None else HEADLINE[each].text(value) for each, value in values.items()}
    parts += [text(column.scale(0.0) + 6, TOP + 14, shown[column.metric], "value") for column in columns]
    texts = [f"{HEADLINE[metric].title}: {figure}" for metric, figure in shown.items()]
    return marked(row.number, "\n".join([f"{row.marked}, the baseline ({suite.title})", *texts]), *parts)


def _cell(row: _Against, column: _Column, y: float) -> Markup:
    """Return an interval with its point, and the difference as text."""
    at = column.scale.end + 8
    ratio = row.ratios.get(column.metric)
    if ratio is None:
        return text(at, y + 4, row.absent[column.metric][0], "tick")
    scale, kind = column.scale, _kind(ratio)
    parts = []
    if ratio.low is not None and ratio.high is not None:
        ends = [math.log(end) for end in (ratio.low, ratio.high)]
        low, high = (scale(end) for end in ends)
        parts.append(line(low, y, high, y, f"interval {kind}"))
        for end, x, sign in ((ends[0], low, 1), (ends[1], high, -1)):
            if scale.low <= end <= scale.high:
                parts.append(line(x, y - 4, x, y + 4, f"interval {kind}"))
            else:  # The interval ends outside the column.
                parts.append(path([(x + 5 * sign, y - 4), (x, y), (x + 5 * sign, y + 4)], f"beyond {kind}"))
    parts.append(element("circle", cx=scale(math.log(ratio.ratio)), cy=y, r=4.0, class_=f"verdict {kind}"))
    figure = "no difference" if kind == "none" else _percent(ratio.ratio) + (" ?" if kind == "open" else "")
    return Markup("").join([*parts, text(at, y + 4, figure, f"value {kind}")])


def _kind(ratio: Ratio) -> str:
    """Return better, worse, none (within the noise), or open (no verdict)."""
    if ratio.measurable is None:
        return "open"
    if not ratio.measurable:
        return "none"
    return "better" if (ratio.ratio > 1) == (FIGURES[ratio.metric].better == "higher") else "worse"


def _told(row: _Against, metric: str) -> str:
    """Return a difference's text in the tooltip: with its interval and verdict, or the reason why there is none."""
    ratio = row.ratios.get(metric)
    if ratio is None:
        return "{} ({})".format(*row.absent[metric])
    interval = f", 95 % {_percent(ratio.low)} to {_percent(ratio.high)}" if ratio.low and ratio.high else ""
    return f"{_percent(ratio.ratio)}{interval} ({ratio.verdict})"


def _percent(ratio: float) -> str:
    """Return a ratio as a difference, '+1.5%', and from 2 on as a multiple, '×3.9'."""
    return f"×{ratio:.3g}" if ratio >= 2 else f"{ratio - 1:+.1%}"
