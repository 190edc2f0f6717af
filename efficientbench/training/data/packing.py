"""Pack whole conversations into sequences, by their lengths alone."""

from __future__ import annotations

import math
import random
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

WAITING = 1000
"""Conversations from which the next one of a sequence is chosen."""


def packed_epoch(numbers: list[int], lengths: np.ndarray, capacity: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the sequences of one epoch: numbers of the conversations in each, every one once.

    Args:
        numbers: of the conversations.
        lengths: of all conversations of the pair, in tokens.
        capacity: tokens of a sequence.
        seed: of the run.
        epoch: counted from 0.
    """
    draw = random.Random(f"{seed} {epoch}")
    shuffled = list(numbers)
    draw.shuffle(shuffled)
    rows = list(best_fit(((int(lengths[number]), number) for number in shuffled), capacity))
    # The first sequences have the longest conversations, and the last ones what was left.
    draw.shuffle(rows)
    return rows


def best_fit(conversations: Iterable[tuple[int, int]], capacity: int) -> Iterator[list[int]]:
    """Yield sequences: each takes the longest waiting conversation that fits into its rest, until none does.

    Args:
        conversations: length and number of each; none is longer than the capacity.
        capacity: tokens of a sequence.
    """
    coming = iter(conversations)
    waiting = sorted(islice(coming, WAITING))
    while waiting:
        row, rest = [], capacity
        while place := bisect_right(waiting, (rest, math.inf)):
            length, number = waiting.pop(place - 1)
            row.append(number)
            rest -= length
            for arrived in islice(coming, 1):
                insort(waiting, arrived)
        yield row
