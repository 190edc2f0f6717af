"""Pack uncut conversations into sequences, by their lengths alone."""

from __future__ import annotations

import math
import random
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

WAITING = 1000
"""Number of waiting conversations from which the next one of a sequence is chosen."""


def packed_epoch(numbers: list[int], lengths: np.ndarray, capacity: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the sequences of one epoch as lists of conversation numbers; each conversation occurs once.

    Args:
        numbers: numbers of the conversations.
        lengths: lengths of all conversations of the corpus, in tokens.
        capacity: tokens of a sequence.
        seed: the run's seed.
        epoch: number of the epoch, counted from 0.
    """
    draw = random.Random(f"{seed} {epoch}")
    shuffled = list(numbers)
    draw.shuffle(shuffled)
    rows = list(best_fit(((int(lengths[number]), number) for number in shuffled), capacity))
    # Best fit puts the longest conversations into the first sequences.
    draw.shuffle(rows)
    return rows


def best_fit(conversations: Iterable[tuple[int, int]], capacity: int) -> Iterator[list[int]]:
    """Yield sequences: each takes the longest waiting conversation that fits into its rest, until none fits.

    Args:
        conversations: (length, number) of each conversation; none is longer than the capacity.
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
