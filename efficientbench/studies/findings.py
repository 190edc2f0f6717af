"""What the runs of a ladder say beside the verdict: differences, noise, the order at the largest size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from efficientbench.metrics.formulas.student import t_quantile_95
from efficientbench.studies.effects import Effects, contrasts, seed_noise
from efficientbench.studies.ladder import Cell, Ladder
from efficientbench.studies.simulate import NAMED
from efficientbench.studies.verdict import POSSIBLE, crossings

Way = Literal["shrinks", "grows", "changes sign", "cannot be told"]


@dataclass(frozen=True)
class CellDifference:
    """A variant's loss minus the baseline's in one cell, in nats."""

    variant: str
    cell: Cell
    seeds: int
    """Paired seeds that both have."""
    measured: float
    margin: float | None
    """Half of the 95 % interval by the noise between seeds of all cells; None for a single seed."""
    fitted: float


@dataclass(frozen=True)
class Trend:
    """How a variant's difference from the baseline goes on from size to size, in nats."""

    variant: str
    by_size: dict[str, float]
    """Size → the mean over its cells."""
    at_target: float
    way: Way
    """From the smallest size to the target, at the target's ratio of tokens to parameters."""


@dataclass(frozen=True)
class Crossing:
    """A size at which the fitted lines of two variants cross."""

    variants: tuple[str, str]
    parameters: float
    within_ladder: bool
    """Whether it lies below the largest size."""


@dataclass(frozen=True)
class Ranking:
    """The variants by their mean loss at the largest size with the most tokens."""

    cell: Cell
    losses: dict[str, float]
    """Variant → nats, the lowest first."""


@dataclass(frozen=True)
class Noise:
    """The standard deviations between seeds at one size, in nats; None for a single seed."""

    size: str
    loss: float | None
    """Of one variant's loss in a cell."""
    difference: float | None
    """Of the difference of two variants that read the same text in the same order."""
    of_trunk: float | None
    """The share of the difference's variance that the budgets of a seed have in common; None without trunks too."""


def differences(ladder: Ladder, effects: Effects) -> list[CellDifference]:
    """Return the differences of each variant in each cell that all variants have."""
    noise = seed_noise(ladder)
    degrees = (len(ladder.variants) - 1) * int(np.maximum(ladder.present.sum(axis=1) - 1, 0).sum())
    found = []
    for place, variant in enumerate(ladder.variants[1:], start=1):
        for at, cell in enumerate(ladder.cells):
            seeds = ladder.present[at]
            own = ladder.losses[place, at, seeds] - ladder.losses[0, at, seeds]
            lines = effects.lines(cell.parameters, cell.tokens)
            margin = None if noise is None else float(t_quantile_95(degrees) * noise * (2 / len(own)) ** 0.5)
            fitted = float(lines[place] - lines[0])
            found.append(CellDifference(variant, cell, len(own), float(own.mean()), margin, fitted))
    return found


def trends(ladder: Ladder, effects: Effects, target: Cell) -> list[Trend]:
    """Return how each variant's difference goes on."""
    below, above = _ends(ladder, effects, target)
    found = []
    for place, variant in enumerate(ladder.variants[1:], start=1):
        means = {}
        for number, size in enumerate(ladder.sizes):
            here = ladder.present & (ladder.size_of == number)[:, None]
            means[size] = float((ladder.losses[place][here] - ladder.losses[0][here]).mean())
        first, last = below[:, place] - below[:, 0], above[:, place] - above[:, 0]
        found.append(Trend(variant, means, float(last.mean()), _way(first, last)))
    return found


def _ends(ladder: Ladder, effects: Effects, target: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses [draws, variants] at the smallest size and at the target, both at the target's ratio."""
    ratio, smallest = target.tokens / target.parameters, float(ladder.parameters.min())
    return effects.at(smallest, smallest * ratio), effects.at(target.parameters, target.tokens)


def _way(first: np.ndarray, last: np.ndarray) -> Way:
    if not _is_sure(last > first):
        return "cannot be told"
    before, after = float(first.mean()), float(last.mean())
    if before * after < 0:
        return "changes sign"
    return "grows" if abs(after) > abs(before) else "shrinks"


def _is_sure(draws: np.ndarray) -> bool:
    """Return whether something holds in nearly all draws, or in nearly none."""
    return not POSSIBLE < draws.mean() < NAMED


def all_crossings(ladder: Ladder, effects: Effects, target: Cell) -> list[Crossing]:
    """Return where the lines of two variants cross, from the smallest size to the target.

    Lines that lie within each other's noise cross anywhere, so that only those count which are apart at the smallest
    size and surely near each other from there.
    """
    below, above = _ends(ladder, effects, target)
    smallest, largest = float(ladder.parameters.min()), float(ladder.parameters.max())
    found = []
    for (one, first), (other, second) in itertools.combinations(enumerate(ladder.variants), 2):
        apart, later = (end[:, one] - end[:, other] for end in (below, above))
        if _is_sure(apart > 0) and _is_sure(later > apart):
            sizes = crossings(effects, first, second, smallest, (target.parameters, target.tokens))
            found += [Crossing((first, second), size, size <= largest) for size in sizes]
    return found


def ranking(ladder: Ladder) -> Ranking:
    """Return the order at the largest size."""
    losses = np.where(ladder.present[-1], ladder.losses[:, -1], np.nan)
    means = dict(zip(ladder.variants, np.nanmean(losses, axis=1).tolist(), strict=True))
    return Ranking(ladder.cells[-1], dict(sorted(means.items(), key=lambda pair: pair[1])))


def noises(ladder: Ladder) -> list[Noise]:
    """Return the noise between seeds at each size."""
    return [_noise(size, ladder.part(cells=ladder.size_of == place)) for place, size in enumerate(ladder.sizes)]


def _noise(size: str, own: Ladder) -> Noise:
    contrast = seed_noise(own)
    # A contrast of two variants is their difference over the root of 2.
    difference = None if contrast is None else contrast * 2**0.5
    return Noise(size, seed_noise(own, np.eye(len(own.variants))), difference, _of_trunk(own))


def _of_trunk(own: Ladder) -> float | None:
    """Return the intraclass correlation of a size's budgets, by the variances of their mean and of each (Fisher)."""
    whole = own.present.all(axis=0)
    budgets, seeds = len(own.cells), int(whole.sum())
    if not own.trunks or budgets < 2 or seeds < 2:
        return None
    values = np.einsum("rv,vcs->rcs", contrasts(len(own.variants)), own.losses[:, :, whole])
    apart = values - values.mean(axis=2, keepdims=True)
    each, mean = float((apart**2).mean()), float((apart.mean(axis=1) ** 2).mean())
    return max(0.0, (budgets * mean / each - 1) / (budgets - 1)) if each else None
