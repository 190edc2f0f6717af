"""What every plot is made of: scales, axes, marks. All text is escaped here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 7
SHAPES = 4
CHARACTER = 6.1
"""Mean width of a character of a label, in the plots' units."""


@dataclass(frozen=True)
class Look:
    """How the marks of one variant look: a colour of the page's palette, and a shape, so that colour is not all."""

    colour: int
    shape: int

    @classmethod
    def of(cls, order: int) -> Look:
        """The look of the variant in that place."""
        return cls(order % COLOURS, (order % COLOURS + order // COLOURS) % SHAPES)


@dataclass(frozen=True)
class Scale:
    """From a figure to a place on the page, linear or logarithmic."""

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
        """A scale that holds all values with a margin on both sides; with `zero`, linear, from zero on."""
        found = [value for value in values if not log or value > 0]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        if log:
            low, high = math.log10(low), math.log10(high)
        if zero:
            return cls(min(low, 0.0), high * (1 + margin) or 1.0, begin, end)
        gap = (high - low) * margin or abs(high) * margin or 1.0
        return cls(low - gap, high + gap, begin, end, log)

    def __call__(self, value: float) -> float:
        at = math.log10(max(value, 1e-300)) if self.log else value
        part = (at - self.low) / (self.high - self.low)
        return self.begin + min(max(part, 0.0), 1.0) * (self.end - self.begin)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round figures inside the scale."""
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
    """A tick's label: '0', '2.5k', '0.004'."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * (10 if name == "k" else 1):
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def number(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """One line of text. `anchor`: start, middle or end."""
    return f'<text x="{number(x)}" y="{number(y)}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{kind}"/>'


def rect(x: float, y: float, width: float, height: float, kind: str, more: str = "") -> str:
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0))}" height="{number(height)}" '
        f'class="{kind}"{more}/>'
    )


def path(points: Sequence[tuple[float, float]], kind: str, closed: bool = False) -> str:
    joined = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return f'<{"polygon" if closed else "polyline"} points="{joined}" class="{kind}"/>'


def mark(x: float, y: float, look: Look, kind: str, size: float = 4.5) -> str:
    """A point: circle, square, diamond or triangle."""
    style = f"{kind} c{look.colour}"
    if look.shape == 0:
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="{size}" class="{style}"/>'
    corners = {
        1: [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2: [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        3: [(0, -1.2), (1.15, 0.85), (-1.15, 0.85)],
    }[look.shape]
    return path([(x + dx * size, y + dy * size) for dx, dy in corners], style, closed=True)


def told(run: int, title: str, content: str) -> str:
    """Marks of one run, with what a pointer that rests there is told."""
    return f'<g class="m" data-run="{run}"><title>{escape(title)}</title>{content}</g>'


def svg(width: float, height: float, label: str, content: Iterable[str]) -> str:
    """The whole plot; `label` is what is read aloud."""
    return (
        f'<svg viewBox="0 0 {number(width)} {number(height)}" role="img" aria-label="{escape(label)}">'
        f"{''.join(content)}</svg>"
    )


def figure(title: str, plot: str, note: str = "", kind: str = "") -> str:
    """A plot under its heading, and a line below it."""
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<figure class="{kind}"><figcaption>{escape(title)}</figcaption>{plot}{below}</figure>'


def axis_x(scale: Scale, top: float, bottom: float, label: str, form: Callable[[float], str] = short) -> str:
    """Grid, ticks and name of the horizontal axis."""
    wanted = max(int(abs(scale.end - scale.begin) / 60), 2)
    parts = []
    for tick in scale.ticks(wanted):
        x = scale(tick)
        parts += [line(x, top, x, bottom, "grid"), text(x, bottom + 14, form(tick), "tick", "middle")]
    if label:
        parts.append(text(scale.end, bottom + 30, label, "axis", "end"))
    return "".join(parts)


def axis_y(scale: Scale, left: float, right: float, label: str, form: Callable[[float], str] = short) -> str:
    """Grid, ticks and name of the vertical axis; the name stands above it."""
    wanted = max(int(abs(scale.end - scale.begin) / 42), 2)
    parts = []
    for tick in scale.ticks(wanted):
        y = scale(tick)
        parts += [line(left, y, right, y, "grid"), text(left - 6, y + 3.5, form(tick), "tick", "end")]
    if label:
        parts.append(text(4, min(scale.begin, scale.end) - 8, label, "axis"))
    return "".join(parts)
