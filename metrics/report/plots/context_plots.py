"""Plots of long contexts: the share of hidden numbers that are found, by length and depth, and the loss by position."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from efficientbench.metrics.report.plots.svg import (
    Figure,
    Labels,
    Look,
    Scale,
    axis_x,
    axis_y,
    line,
    path,
    rect,
    short,
    svg,
    text,
    told,
)
from efficientbench.metrics.report.sections.contexts import BY_POSITION, HIDDEN, Context

WIDTH = 400
LEFT, RIGHT, TOP = 46, 388, 30


def context_figures(contexts: Sequence[Context]) -> list[Figure]:
    """Return a figure for each run with hidden numbers, and one with the losses of all runs."""
    figures = [
        Figure(
            f"{each.task}: {each.run}", _grid(each), f"Trained with {each.trained_tokens:,} tokens; step {each.step:,}."
        )
        for task in HIDDEN
        for each in contexts
        if each.task == task and each.grid
    ]
    curves = [each for each in contexts if each.task == BY_POSITION and len(each.ranges) > 1]
    if curves:
        note = "Lines stand at the trained length. Losses of different tokenizers are not comparable."
        figures.append(Figure("Loss by position in the context", _curves(curves), note))
    return figures


def _grid(context: Context) -> Markup:
    """Plot the share of right answers: a column for each length, a row for each depth."""
    lengths = sorted({cell.length for cell in context.grid})
    depths = sorted({cell.depth for cell in context.grid})
    height, width = 30, (RIGHT - LEFT) / len(lengths)
    bottom = TOP + height * len(depths)
    parts = [text(4, TOP - 10, "depth", "axis"), text(RIGHT, bottom + 30, "tokens", "axis", "end")]
    for row, depth in enumerate(depths):
        parts.append(text(LEFT - 6, TOP + height * (row + 0.5) + 4, f"{depth:.0%}", "tick", "end"))
    for column, length in enumerate(lengths):
        beyond = "*" if length > context.trained_tokens else ""
        parts.append(text(LEFT + width * (column + 0.5), bottom + 14, f"{length:,}{beyond}", "tick", "middle"))
    for cell in context.grid:
        x, y = LEFT + width * lengths.index(cell.length), TOP + height * depths.index(cell.depth)
        share = cell.right / cell.items
        name = f"{context.task} of {context.run}, depth {cell.depth:.0%}"
        tooltip = f"{name}\n{cell.length:,} tokens: {cell.right} of {cell.items} right"
        drawn = rect(x, y, width, height, "heat c0", fill_opacity=f"{0.75 * share:.3f}")
        value = text(x + width / 2, y + height / 2 + 4, f"{share:.0%}", "value", "middle")
        parts.append(told(tooltip, drawn, value))
    return svg(WIDTH, bottom + 38, f"{context.task} of {context.run}, by length and depth", parts)


def _curves(contexts: Sequence[Context]) -> Markup:
    """Plot the mean loss of each range of positions, a line for each run."""
    bottom = 256
    ends = [each.end - 1 for context in contexts for each in context.ranges]
    x = Scale.over([1, *ends], LEFT, RIGHT - 56, log=True, margin=0.03)
    y = Scale.over([each.loss for context in contexts for each in context.ranges], bottom, TOP, margin=0.08)
    parts = [axis_x(x, TOP, bottom, "position, tokens"), axis_y(y, LEFT, RIGHT, "loss, nats/token")]
    labels = Labels((LEFT, TOP, WIDTH, bottom))
    for place, context in enumerate(contexts):
        look = Look.of(place)
        points = [(x((each.first + each.end - 1) / 2), y(each.loss)) for each in context.ranges]
        trained = x(context.trained_tokens)
        last = context.ranges[-1]
        tooltip = f"{context.run}: loss {last.loss:.3f} at {short(last.end - 1)} tokens"
        drawn = [path(points, f"line c{look.colour}"), labels.place(context.run, *points[-1], beside_only=True)]
        parts.append(told(tooltip, line(trained, TOP, trained, bottom, "median"), *drawn))
    return svg(WIDTH, 300, "Loss by position, one line a run", parts)
