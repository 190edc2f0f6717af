"""The order of a whole run's samples, as pure functions: every rank computes the same one, and can hash it.

An order is an int64 array [steps · batch] of sample numbers: step k trains on `order[k * batch : (k + 1) * batch]`. It
counts optimizer steps, not epochs, and is whole before the run starts, so that a resumed run goes on at its position.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from efficientbench.finetuning.curriculum.config import Stage

Rank = TypeVar("Rank", int, float)


def run_steps(samples: int, epochs: float, batch: int) -> int:
    """Return the optimizer steps in which each sample is seen `epochs` times; the last step is filled up."""
    return math.ceil(samples * epochs / batch)


def stage_steps(steps: int, stages: Sequence[Stage]) -> list[int]:
    """Return the steps of each stage: step k, counted from 0, is in the first stage with k / steps < its end."""
    # A quotient of whole numbers equals the decimal that a user writes; a product with it may not.
    ends = [sum(step / steps < stage.end for step in range(steps)) for stage in stages]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def staged_order(levels: Sequence[int], steps: int, batch: int, seed: int, stages: Sequence[Stage]) -> np.ndarray:
    """Return an order with the mixture of each stage, exact to a sample by error diffusion.

    A level's samples come in shuffled passes: each once, then all again in another order. Within a step the samples
    are shuffled, so that no rank always gets the same level.

    Args:
        levels: level of each sample, from 0; -1: the sample takes no part.
        steps: optimizer steps of the run.
        batch: samples in a step, over all ranks.
        seed: of the shuffles.
        stages: mixtures; a level with a share above 0 has samples.
    """
    members = [np.flatnonzero(np.asarray(levels) == level) for level in range(len(stages[0].mixture))]
    passes = [_passes(own, f"{seed} level {level}") for level, own in enumerate(members)]
    drawn: list[int] = []
    for length, stage in zip(stage_steps(steps, stages), stages, strict=True):
        drawn.extend(next(passes[level]) for level in _diffused(stage.mixture, length * batch))
    return _shuffled_in_steps(np.array(drawn, np.int64), batch, seed)


def competence_order(scores: Sequence[float], steps: int, batch: int, seed: int, start: float = 0.01) -> np.ndarray:
    """Return an order that draws each step's samples from the easiest share c of all, each with the same chance.

    c(k) = min(1, √(k (1 − c0²) / steps + c0²)) in step k, with c0 = `start` (Platanios et al. 2019, equation 7).
    Samples of one score rank by their number.
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
    """Return the random order of all samples with each of its passes sorted from easy to hard.

    Samples of one score stay in random order, and so does the choice of a last pass that is not whole.
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
    """Return the same samples, each as often, in random order: what differs from `order` is order alone."""
    numbers = order.tolist()
    random.Random(f"{seed} shuffled").shuffle(numbers)
    return np.array(numbers, np.int64)


def reversed_steps(order: np.ndarray, batch: int) -> np.ndarray:
    """Return the steps of an order backwards, each with the same samples."""
    return order.reshape(-1, batch)[::-1].reshape(-1)


def permuted(difficulties: Sequence[Rank], seed: int) -> list[Rank]:
    """Return the difficulties dealt out to the samples at random: a curriculum of them is one of meaningless labels."""
    dealt = list(difficulties)
    random.Random(f"{seed} levels").shuffle(dealt)
    return dealt


def order_hash(order: np.ndarray) -> str:
    """Return the SHA-256 of an order, the same on every machine."""
    return hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True)
class Seen:
    """How much of a set of samples an order draws."""

    samples: int
    drawn: int
    coverage: float
    """Share of the samples that the order draws at least once."""

    @property
    def passes(self) -> float:
        return self.drawn / self.samples


def seen(order: np.ndarray, members: np.ndarray) -> Seen:
    """Count what an order draws of the samples with these numbers, of which there is at least one."""
    drawn = order[np.isin(order, members)]
    return Seen(members.size, drawn.size, np.unique(drawn).size / members.size)


def _passes(members: np.ndarray, seed: str) -> Iterator[int]:
    """Yield the members in shuffled passes without end; each pass has an order of its own."""
    chance = random.Random(seed)
    numbers = members.tolist()
    while numbers:
        chance.shuffle(numbers)
        yield from numbers


def _diffused(mixture: Sequence[float], count: int) -> Iterator[int]:
    """Yield `count` levels: each time the one that is furthest behind its share."""
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
