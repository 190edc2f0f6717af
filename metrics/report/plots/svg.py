"""The parts that all plots share: looks of runs, scales, axes, marks and labels. All text is escaped here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import unique_names

COLOURS = 7
SHAPES = 4
CHARACTER = 6.1
"""Mean width of a label's character, in the plots' units."""
LONGEST_NAME = 24
"""Most characters of a name that fit beside a row."""
MOST_RUNS = 48
"""Most runs in plots that have a row or a figure for each run; the table has all of them."""


@dataclass(frozen=True)
class Look:
    """The look of one variant's marks: a palette colour, and a shape for readers who cannot tell colours apart."""

    colour: int
    shape: int

    @classmethod
    def of(cls, order: int) -> Look:
        """Return the look of the variant with that index."""
        return cls(order % COLOURS, (order % COLOURS + order // COLOURS) % SHAPES)


@dataclass(frozen=True)
class Run:
    """A record with its index in the report and the look of its variant."""

    number: int
    name: str
    look: Look
    record: RunRecord


def numbered(records: Sequence[RunRecord]) -> list[Run]:
    """Return the runs in the records' order; a variant looks the same everywhere."""
    look = looks(record.variant for record in records)
    names = unique_names(records)
    return [Run(place, names[place], look[record.variant], record) for place, record in enumerate(records)]


def looks(variants: Iterable[str]) -> dict[str, Look]:
    """Return the look of each variant, in the order in which the variants first occur."""
    return {variant: Look.of(order) for order, variant in enumerate(dict.fromkeys(variants))}


@dataclass(frozen=True)
class Figure:
    """A plot under its title, and a line below it."""

    title: str
    plot: Markup
    note: str = ""
    """Text below the plot; the plot may be empty, and the note then says why."""


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from a figure to a coordinate of the plot."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        begin: float,
        end: float,
        zero: bool = False,
        log: bool = False,
        margin: float = 0.06,
    ) -> Scale:
        """Return a scale that holds all values, with a margin on both sides; with `zero`, a linear one that holds 0."""
        found = [value for value in values if not log or value > 0]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        if log:
            low, high = math.log10(low), math.log10(high)
        if zero:
            below, above = (max(side, 0.0) * (1 + margin) for side in (-low, high))
            return cls(-below, above if below or above else 1.0, begin, end)
        gap = (high - low) * margin or abs(high) * margin or 1.0
        return cls(low - gap, high + gap, begin, end, log)

    def __call__(self, value: float) -> float:
        at = math.log10(max(value, 1e-300)) if self.log else value
        part = (at - self.low) / (self.high - self.low)
        return self.begin + min(max(part, 0.0), 1.0) * (self.end - self.begin)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Return round values inside the scale, about as many as wanted."""
        if self.log:
            found = [
                step * 10.0**power
                for power in range(math.floor(self.low), math.ceil(self.high) + 1)
                for step in (1, 2, 5)
                if self.low <= math.log10(step * 10.0**power) <= self.high
            ]
            if len(found) >= 2:
                whole = [tick for tick in found if math.log10(tick) == round(math.log10(tick))]
                return whole if len(found) > wanted + 2 and len(whole) >= 2 else found
        low, high = (10.0**self.low, 10.0**self.high) if self.log else (self.low, self.high)
        return _round_steps(low, high, wanted)


def _round_steps(low: float, high: float, wanted: int) -> list[float]:
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [tick * step for tick in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return a tick's label: '0', '2.5k', '0.004'."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * (10 if name == "k" else 1):
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def element(name: str, *content: str, **attributes: str | float) -> Markup:
    """Return one element of SVG.

    Args:
        name: the element's name.
        content: the element's content; text that is not Markup is escaped.
        attributes: the attributes by name, with `_` for `-`, and `_` after a name that Python reserves. Numbers are
            coordinates, written to a tenth.
    """
    given = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value if isinstance(value, str) else _tenth(value))
        for key, value in attributes.items()
    )
    if not content:
        return Markup("<{}{}/>").format(name, given)
    return Markup("<{0}{1}>{2}</{0}>").format(name, given, Markup("").join(content))


def _tenth(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> Markup:
    """Return one line of text. `anchor`: start, middle or end."""
    return element("text", content, x=x, y=y, class_=kind, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def rect(x: float, y: float, width: float, height: float, kind: str, **more: str) -> Markup:
    """Return a rectangle; a negative width counts as 0."""
    return element("rect", x=x, y=y, width=max(width, 0), height=height, class_=kind, **more)


def path(points: Sequence[tuple[float, float]], kind: str, closed: bool = False) -> Markup:
    """Return a line through the points, closed or not."""
    joined = " ".join(f"{_tenth(x)},{_tenth(y)}" for x, y in points)
    return element("polygon" if closed else "polyline", points=joined, class_=kind)


def mark(x: float, y: float, look: Look, kind: str, size: float = 4.5) -> Markup:
    """Return a point's mark: circle, square, diamond or triangle."""
    style = f"{kind} c{look.colour}"
    if look.shape == 0:
        return element("circle", cx=x, cy=y, r=size, class_=style)
    corners = {
        1: [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2: [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        3: [(0, -1.2), (1.15, 0.85), (-1.15, 0.85)],
    }[look.shape]
    return path([(x + dx * size, y + dy * size) for dx, dy in corners], style, closed=True)


def marked(run_number: int, tooltip: str, *content: str) -> Markup:
    """Return the marks of the run with that number, with a tooltip."""
    return told(tooltip, *content, class_="m", data_run=run_number)


def told(tooltip: str, *content: str, **attributes: str | float) -> Markup:
    """Return marks with a tooltip, which screen readers read, and which the section's table has (`told.py`).

    tooltip: "NAME: WORDS", or for several figures a line of the name and a line "FIGURE: WORDS" for each.
    """
    return element("g", element("title", tooltip), *content, role="img", **attributes)


def svg(width: float, height: float, label: str, content: Iterable[str]) -> Markup:
    """Return the plot's `svg` element; screen readers read `label`, and then the marks that have words of their own."""
    size, drawn = f"0 0 {_tenth(width)} {_tenth(height)}", Markup("").join(content)
    role = "group" if "<title>" in drawn else "img"
    return element("svg", drawn, viewBox=size, role=role, aria_label=label)


def key_of(variant: str, look: Look) -> Markup:
    """Return the mark of a variant, as wide as a character, for legends and tables."""
    return svg(12, 12, variant, [mark(6, 6, look, "point on", 4.2)])


def axis_x(scale: Scale, top: float, bottom: float, label: str, tick_text: Callable[[float], str] = short) -> Markup:
    """Return the grid, ticks and label of the horizontal axis."""
    wanted = max(int(abs(scale.end - scale.begin) / 60), 2)
    parts = []
    for tick in scale.ticks(wanted):
        x = scale(tick)
        parts += [line(x, top, x, bottom, "grid"), text(x, bottom + 14, tick_text(tick), "tick", "middle")]
    return Markup("").join([*parts, text(scale.end, bottom + 30, label, "axis", "end")])


def axis_y(scale: Scale, left: float, right: float, label: str) -> Markup:
    """Return the grid, ticks and label of the vertical axis; the label stands above the axis."""
    wanted = max(int(abs(scale.end - scale.begin) / 42), 2)
    parts = []
    for tick in scale.ticks(wanted):
        y = scale(tick)
        parts += [line(left, y, right, y, "grid"), text(left - 6, y + 3.5, short(tick), "tick", "end")]
    return Markup("").join([*parts, text(4, min(scale.begin, scale.end) - 8, label, "axis")])


def cut(name: str) -> str:
    """Return a name that fits beside a row."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class Labels:
    """Names beside marks, inside `room`, that overlap neither each other nor the `taken` boxes."""

    def __init__(self, room: Box, taken: Sequence[Box] = ()) -> None:
        self._room = room
        # One array is fast: with a thousand runs, each label is compared with all the marks.
        self._taken = np.array(taken, dtype=float).reshape(-1, 4)

    def place(self, name: str, x: float, y: float, beside_only: bool = False) -> Markup:
        """Return the name beside the point at (x, y); nothing where every position is taken.

        The tooltip and the table have the skipped names.
        """
        width, height = len(name) * CHARACTER, 11
        places = [(x + 8, y + 4), (x - 8 - width, y + 4), (x - width / 2, y - 8), (x - width / 2, y + 17)]
        for left, bottom in places[:1] if beside_only else places:
            box = (left, bottom - height, left + width, bottom + 1)
            if self._is_free(box):
                self._taken = np.vstack([self._taken, box])
                return text(left, bottom, name, "label")
        return Markup("")

    def _is_free(self, box: Box) -> bool:
        if box[0] < self._room[0] or box[1] < self._room[1] or box[2] > self._room[2] or box[3] > self._room[3]:
            return False
        left, top, right, bottom = self._taken.T
        return not np.any((left < box[2]) & (box[0] < right) & (top < box[3]) & (box[1] < bottom))
