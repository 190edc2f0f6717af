"""Names beside marks, where there is room for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from efficientbench.metrics.report.html.svg import CHARACTER, text

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class Placed:
    """What takes up room already. One array of it: of a thousand runs, each label is held against all the marks."""

    def __init__(self, boxes: Sequence[Box] = ()) -> None:
        self._boxes = np.array(boxes, dtype=float).reshape(-1, 4)

    def add(self, box: Box) -> None:
        self._boxes = np.vstack([self._boxes, box])

    def leaves(self, box: Box) -> bool:
        """Whether the box is free."""
        left, top, right, bottom = self._boxes.T
        return not np.any((left < box[2]) & (box[0] < right) & (top < box[3]) & (box[1] < bottom))


def label(name: str, x: float, y: float, placed: Placed, room: Box, beside_only: bool = False) -> str:
    """The name beside the point at (x, y), and its box among `placed`; nothing where every place is taken.

    A name left out is still told by the pointer and by the table.
    """
    width, height = len(name) * CHARACTER, 11
    places = [(x + 8, y + 4), (x - 8 - width, y + 4), (x - width / 2, y - 8), (x - width / 2, y + 17)]
    for left, bottom in places[:1] if beside_only else places:
        box = (left, bottom - height, left + width, bottom + 1)
        inside = left >= room[0] and box[1] >= room[1] and box[2] <= room[2] and box[3] <= room[3]
        if inside and placed.leaves(box):
            placed.add(box)
            return text(left, bottom, name, "label")
    return ""
