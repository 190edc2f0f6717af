"""Batches of sequences of about the same length, so that few tokens only fill up rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def rounded(length: int, longest: int | None) -> int:
    """Return the number of tokens that rows are filled up to: at most an eighth more, and never beyond `longest`.

    Few different numbers, since encodings keep what they compute for each.
    """
    step = max(1 << max(length.bit_length() - 4, 0), 1)
    filled = -(-length // step) * step
    return filled if longest is None else max(min(filled, longest), length)


def padded_parts(ordered: Sequence[T], length: Callable[[T], int], budget: int) -> Iterator[list[T]]:
    """Yield what lies next to each other in parts that take at most `budget` tokens with padding, or in parts of one.

    Args:
        ordered: by ascending length.
        length: tokens of one.
        budget: tokens of a part.
    """
    part: list[T] = []
    for each in ordered:
        if part and length(each) * (len(part) + 1) > budget:
            yield part
            part = []
        part.append(each)
    if part:
        yield part
