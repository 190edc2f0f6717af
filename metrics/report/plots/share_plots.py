"""Plots of where a step's time goes: one bar a traced run, one piece a kind of work."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from efficientbench.metrics.report.plots.svg import CHARACTER, COLOURS, MOST_RUNS, Figure, element, rect, svg, text
from efficientbench.metrics.report.sections.rank_table import Profiled

WIDTH = 960
ROW, TOP = 24, 26
_LONGEST = 32
_FITS = 34
"""Least width of a piece that shows its share."""


def share_figures(profiled: Sequence[Profiled]) -> list[Figure]:
    """Return a figure for device times and one for thread times, which are not comparable."""
    found = []
    for on_device, what in ((True, "the device's time"), (False, "time of the training thread's operations")):
        shown = [each for each in profiled if each.shares.on_device is on_device]
        if shown:
            rest = len(shown) - MOST_RUNS
            more = f" The first {MOST_RUNS} of {len(shown):,} runs." if rest > 0 else ""
            note = (
                f"Share of a traced step, {what}, rank 0. Tracing makes steps longer, most where work is small.{more}"
            )
            found.append(Figure("A step by kind of work", _plot(shown[:MOST_RUNS]), note))
    return found


def _plot(profiled: Sequence[Profiled]) -> Markup:
    kinds = list(dict.fromkeys(kind for each in profiled for kind in each.shares.seconds))
    left = 14 + CHARACTER * max(len(_cut(each.run)) for each in profiled)
    parts = [_legend(kinds, left)]
    for number, each in enumerate(profiled):
        y = TOP + ROW * number
        parts.append(text(left - 8, y + 15, _cut(each.run), "label", "end"))
        # The times of concurrent kernels may add up to more than the step.
        whole = max(each.shares.step_time_s, sum(each.shares.seconds.values()))
        x = left
        for kind, seconds in each.shares.seconds.items():
            width = seconds / whole * (WIDTH - left - 6)
            share = seconds / each.shares.step_time_s
            tooltip = f"{each.run}\n{kind}: {share:.1%} of a step of {each.shares.step_time_s * 1e3:,.1f} ms"
            drawn = [element("title", tooltip), rect(x, y + 2, max(width - 1, 0), ROW - 5, _look(kinds, kind))]
            if width >= _FITS:
                drawn.append(text(x + width / 2, y + 15, f"{share:.0%}", "value", "middle"))
            parts.append(element("g", *drawn))
            x += width
    return svg(WIDTH, TOP + ROW * len(profiled) + 6, "Share of a step by kind of work, one bar a run", parts)


def _legend(kinds: Sequence[str], left: float) -> Markup:
    parts, x = [], left
    for kind in kinds:
        parts += [rect(x, 5, 10, 10, _look(kinds, kind)), text(x + 14, 14, kind, "tick")]
        x += 30 + CHARACTER * len(kind)
    return Markup("").join(parts)


def _look(kinds: Sequence[str], kind: str) -> str:
    place = kinds.index(kind)
    return f"bar c{place % COLOURS}" + (" again" if place >= COLOURS else "")


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
