"""Any run of elements of a row-major tensor is cut into rectangles that hold each of them once."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from efficientbench.training.checkpoints.shards import rectangles

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(SHAPES, st.data())
def test_rectangles_cover_each_element_once_and_in_order(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    begin = data.draw(st.integers(0, size))
    end = data.draw(st.integers(begin, size))
    whole = torch.arange(size).view(shape)
    found = []
    for offset, extent in rectangles(tuple(shape), begin, end):
        part = whole[tuple(slice(o, o + e) for o, e in zip(offset, extent, strict=True))]
        # In one run of memory each, so that a flat storage has a view of it.
        assert part.flatten().tolist() == list(range(part.flatten()[0], part.flatten()[0] + part.numel()))
        found += part.flatten().tolist()
    assert found == list(range(begin, end))
    # No more than two for each dimension but the last, and one.
    assert len(list(rectangles(tuple(shape), begin, end))) <= 2 * len(shape) - 1
