"""Which rectangles of which whole tensors this rank holds.

Checkpoints know whole parameters by their global names, so that any layout can read what another wrote. A rank's part
of a parameter lies in one flat run of memory, whole or (the distributed optimizer's states) cut anywhere: it is a few
rectangles of the whole parameter, each a contiguous view.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from efficientbench.training.checkpoints.held import Block

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A rectangle of a whole tensor, and this rank's storage of it."""

    name: str
    whole: Shape
    offset: Shape
    tensor: torch.Tensor
    """A view of what the model or the optimizer uses."""


def pieces(parts: list[Block], storage: torch.Tensor, begin: int) -> Iterator[Piece]:
    """The rectangles within a flat storage that holds elements from `begin` on of this rank's part of a parameter.

    Args:
        parts: the blocks of this rank's part.
        storage: [N]
        begin: in elements of the part.
    """
    end = begin + storage.numel()
    for block in parts:
        size = math.prod(block.shape)
        low, high = max(begin - block.begin, 0), min(end - block.begin, size)
        position = block.begin + low - begin
        for offset, shape in rectangles(block.shape, low, high):
            count = math.prod(shape)
            view = storage[position : position + count].view(shape)
            position += count
            yield Piece(block.name, block.whole, tuple(a + b for a, b in zip(block.offset, offset, strict=True)), view)


def rectangles(shape: Shape, begin: int, end: int) -> Iterator[tuple[Shape, Shape]]:
    """Cut elements `begin` to `end` of a row-major tensor into rectangles, in order: (offset, shape) of each."""
    if begin >= end:
        return
    if len(shape) == 1:
        yield (begin,), (end - begin,)
        return
    inner = math.prod(shape[1:])
    row, behind = divmod(begin, inner)
    if behind:
        stop = min(end, (row + 1) * inner)
        for offset, size in rectangles(shape[1:], behind, stop - row * inner):
            yield (row, *offset), (1, *size)
        begin, row = stop, row + 1
    rows = (end - begin) // inner
    if rows > 0:
        yield (row, *[0] * (len(shape) - 1)), (rows, *shape[1:])
    if begin + rows * inner < end:
        for offset, size in rectangles(shape[1:], 0, end - begin - rows * inner):
            yield (row + rows, *offset), (1, *size)
