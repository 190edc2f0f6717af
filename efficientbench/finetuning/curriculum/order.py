"""The order of a run's samples, as pure functions: every rank computes the same order, and can hash it.

An order is an int64 array [steps · batch] of sample numbers: step k trains on `order[k * batch : (k + 1) * batch]`. It
is in optimizer steps, not epochs, and complete before the run starts, so that a run resumes at its position.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from efficientbench.finetuning.curriculum.config import Stage

Rank = TypeVar("Rank", int, float)


def run_steps(samples: int, epochs: float, batch: int) -> int:
    """Return the optimizer steps of `epochs` passes over the samples, rounded up to a full batch."""
    # As the decimal that a user wrote: 100 * 1.1 is more than 110.
    return math.ceil(samples * Fraction(str(epochs)) / batch)


def stage_steps(steps: int, stages: Sequence[Stage]) -> list[int]:
    """Return the number of steps of each stage: step k, from 0, is in the first stage with k / steps < its end."""
    # A quotient of integers equals the decimal that a user writes; a product of decimal and steps may not be exact.
    ends = [sum(step / steps < stage.end for step in range(steps)) for stage in stages]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def staged_order(levels: Sequence[int], steps: int, batch: int, seed: int, stages: Sequence[Stage]) -> np.ndarray:
    """Return an order with each stage's mixture, exact to a sample by error diffusion.

    A level's samples come in shuffled passes, each with an order of its own. The samples of a step are shuffled, so
    that no rank always gets the same level.

    Args:
        levels: each sample's level, from 0; -1: the sample takes no part.
        steps: optimizer steps of the run.
        batch: samples per step over all ranks.
        seed: the seed of all shuffles.
        stages: the stages; every level with a share above 0 needs samples.
    """
    members = [np.flatnonzero(np.asarray(levels) == level) for level in range(len(stages[0].mixture))]
    passes = [_passes(own, f"{seed} level {level}") for level, own in enumerate(members)]
    drawn: list[int] = []
    for length, stage in zip(stage_steps(steps, stages), stages, strict=True):
        drawn.extend(next(passes[level]) for level in _diffused(stage.mixture, length * batch))
    return _shuffled_in_steps(np.array(drawn, np.int64), batch, seed)


def competence_order(scores: Sequence[float], steps: int, batch: int, seed: int, start: float = 0.01) -> np.ndarray:
    """Return an order that draws each step's samples uniformly from the easiest share c of all samples.

    c(k) = min(1, √(k (1 − c0²) / steps + c0²)) in step k, with c0 = `start` (Platanios et al. 2019, equation 7).
    Samples with equal scores rank by their index.
    """
    ranked = np.argsort(np.asarray(scores), kind="stable")
    chance = random.Random(f"{seed} competence")
    drawn: list[int] = []
    for step in range(steps):
        competence = min(1.0, math.sqrt(step * (1 - start**2) / steps + start**2))
        pool = math.ceil(competence * ranked.size)
        drawn.extend(int(ranked[chance.randrange(pool)]) for _ in range(batch))
    return np.array(drawn, np.int64)


def sorted_order(scores: Sequence[float], steps: int, batch: int, seed: int) -> np.ndarray:
    """Return shuffled passes over all samples, each pass sorted from easy to hard.

    Samples with equal scores stay in random order; an incomplete last pass has randomly chosen samples.
    """
    given = np.asarray(scores)
    order = random_order(range(given.size), steps, batch, seed)
    passes = [order[begin : begin + given.size] for begin in range(0, order.size, given.size)]
    return np.concatenate([own[np.argsort(given[own], kind="stable")] for own in passes])


def random_order(samples: Sequence[int] | np.ndarray, steps: int, batch: int, seed: int) -> np.ndarray:
    """Return shuffled passes over all samples, cut after the last step."""
    passes = _passes(np.asarray(samples), f"{seed} all")
    return np.fromiter((next(passes) for _ in range(steps * batch)), np.int64, steps * batch)


def shuffled(order: np.ndarray, seed: int) -> np.ndarray:
    """Return the samples of `order` in random order, each as often, so that the two differ in order alone."""
    numbers = order.tolist()
    random.Random(f"{seed} shuffled").shuffle(numbers)
    return np.array(numbers, np.int64)


def reversed_steps(order: np.ndarray, batch: int) -> np.ndarray:
    """Return the steps of an order in reverse, each with its samples unchanged."""
    return order.reshape(-1, batch)[::-1].reshape(-1)


def permuted(difficulties: Sequence[Rank], seed: int) -> list[Rank]:
    """Return the difficulties randomly permuted over the samples, as meaningless labels for a baseline."""
    dealt = list(difficulties)
    random.Random(f"{seed} levels").shuffle(dealt)
    return dealt


def order_hash(order: np.ndarray) -> str:
    """Return the SHA-256 (hex) of an order, the same on every machine."""
    return hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True)
class Seen:
    """How often an order draws the samples of a set."""

    samples: int
    drawn: int
    coverage: float
    """The share of the samples that the order draws at least once."""

    @property
    def passes(self) -> float:
        return self.drawn / self.samples


def seen(order: np.ndarray, members: np.ndarray) -> Seen:
    """Count how often an order draws the samples numbered `members`, one or more."""
    drawn = order[np.isin(order, members)]
    return Seen(members.size, drawn.size, np.unique(drawn).size / members.size)


def _passes(members: np.ndarray, seed: str) -> Iterator[int]:
    """Yield the members in endless shuffled passes, each with an order of its own."""
    chance = random.Random(seed)
    numbers = members.tolist()
    while numbers:
        chance.shuffle(numbers)
        yield from numbers


def _diffused(mixture: Sequence[float], count: int) -> Iterator[int]:
    """Yield `count` levels, each time the level that is furthest behind its share."""
    credit = [0.0] * len(mixture)
    for _ in range(count):
        credit = [owed + share for owed, share in zip(credit, mixture, strict=True)]
        level = max(range(len(mixture)), key=credit.__getitem__)
        credit[level] -= 1
        yield level


def _shuffled_in_steps(order: np.ndarray, batch: int, seed: int) -> np.ndarray:
    chance = random.Random(f"{seed} steps")
    mixed: list[int] = []
    for numbers in order.reshape(-1, batch).tolist():
        chance.shuffle(numbers)
        mixed.extend(numbers)
    return np.array(mixed, np.int64)
