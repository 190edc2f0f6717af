"""Where a mixture's tokens went: layers by experts."""

from __future__ import annotations

import math

from efficientbench.metrics.records.record_parts import ExpertLoad
from efficientbench.metrics.report.html.svg import figure, rect, svg, text, told

WIDTH = 400
LEFT, TOP = 46, 22
_ROW = 15
_FITS = 26
"""Width of a cell that holds its number."""


def expert_load(run: int, name: str, load: ExpertLoad) -> str:
    """A cell for each expert of each layer: its tokens over the mean of its layer, 1 where all get as many."""
    layers = load.tokens_per_expert
    experts = max((len(layer) for layer in layers), default=0)
    if not experts:
        return ""
    cell = (WIDTH - LEFT - 8) / experts
    parts = [text(LEFT, 12, "expert", "axis"), text(LEFT - 6, 12, "layer", "axis", "end")]
    for number, tokens in enumerate(layers, start=1):
        y = TOP + _ROW * (number - 1)
        if len(layers) <= 16 or number % 4 == 0 or number == 1:
            parts.append(text(LEFT - 6, y + 11, str(number), "tick", "end"))
        mean = sum(tokens) / len(tokens) or 1.0
        for expert, count in enumerate(tokens):
            where = f"layer {number}, expert {expert + 1}"
            parts.append(_cell(run, where, count, count / mean, LEFT + expert * cell, y, cell))
    busiest = max(load.load_imbalance, default=1.0)
    note = f"1 is an even share. The busiest expert of any layer got {busiest:.2f} times its share."
    height = TOP + _ROW * len(layers) + 6
    return figure(name, svg(WIDTH, height, f"{name}: load of the experts by layer", parts), note)


def _cell(run: int, where: str, count: int, ratio: float, x: float, y: float, width: float) -> str:
    # A doubled or halved share has the full colour.
    strength = min(abs(math.log2(ratio)) if ratio > 0 else 1.0, 1.0)
    shade = f' fill-opacity="{0.08 + 0.82 * strength:.2f}"'
    content = rect(x, y, width - 1, _ROW - 1, "more" if ratio >= 1 else "less", shade)
    if width >= _FITS:
        kind = "value strong" if strength > 0.6 else "value"
        content += text(x + (width - 1) / 2, y + 11, f"{ratio:.2f}", kind, "middle")
    return told(run, f"{where}: {count:,} tokens, {ratio:.2f} of an even share", content)
