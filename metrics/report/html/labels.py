"""Names beside marks, where there is room for them."""

from __future__ import annotations

from metrics.report.html.svg import CHARACTER, text

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def label(name: str, x: float, y: float, placed: list[Box], room: Box, beside_only: bool = False) -> str:
    """The name beside the point at (x, y), and its box among `placed`; nothing where every place is taken.

    A name left out is still told by the pointer and by the table.
    """
    width, height = len(name) * CHARACTER, 11
    places = [(x + 8, y + 4), (x - 8 - width, y + 4), (x - width / 2, y - 8), (x - width / 2, y + 17)]
    for left, bottom in places[:1] if beside_only else places:
        box = (left, bottom - height, left + width, bottom + 1)
        inside = left >= room[0] and box[1] >= room[1] and box[2] <= room[2] and box[3] <= room[3]
        if inside and not any(_overlap(box, other) for other in placed):
            placed.append(box)
            return text(left, bottom, name, "label")
    return ""


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
