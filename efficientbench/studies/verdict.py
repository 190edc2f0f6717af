"""What a study answers: which variant is best at the target, which is cheapest, and which cannot be told apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from efficientbench.studies.effects import Effects
from efficientbench.studies.law import Law
from efficientbench.studies.simulate import NAMED, shares_best

POSSIBLE = 1 - NAMED
"""The probability of being best from which on a variant is not excluded."""
LEVEL = 0.01
"""Nats within which variants are level, and chosen by cost."""
MOST = 1e6
"""The largest factor of compute that a lead is told to be worth, or to cost."""
_SIZES = 60


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, of draws from the posterior."""

    mean: float
    """Of ratios the geometric one."""
    low: float
    high: float

    @classmethod
    def of(cls, draws: np.ndarray) -> Interval:
        """Return the interval of draws [draws]."""
        low, high = np.quantile(draws, (0.025, 0.975))
        return cls(float(draws.mean()), float(low), float(high))

    @classmethod
    def of_ratios(cls, draws: np.ndarray) -> Interval:
        """Return the interval of ratios [draws]."""
        logs = cls.of(np.log(draws))
        return cls(*(math.exp(each) for each in (logs.mean, logs.low, logs.high)))

    def times(self, factor: float) -> Interval:
        """Return the interval in another unit."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor)

    def within(self, bound: float) -> bool:
        """Return whether the interval lies within a bound on both sides of 0."""
        return -bound <= self.low and self.high <= bound


@dataclass(frozen=True)
class Costs:
    """What the variants cost at the target, in the units that were measured or planned for all of them.

    Arrays are [variants], or [draws, variants] where a cost has an interval of its own.
    """

    training: Mapping[str, np.ndarray]
    """Unit, as seconds, joules or a currency → the cost of the training with the target's tokens."""
    serving: Mapping[str, np.ndarray]
    """Unit → the cost of a served token."""
    lives: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Unit, with the tokens to be served → the cost of the training, and of serving these."""


@dataclass(frozen=True)
class Standing:
    """Where a variant stands at the target."""

    variant: str
    loss: Interval | None
    """In nats a token; None where the law is not the ladder's own."""
    difference: Interval | None
    """The loss minus the baseline's, in nats; None of the baseline."""
    best: float
    """The probability that its loss is the lowest."""
    to_baseline: dict[str, Interval]
    """Unit → the cost of training until the baseline's loss, and of serving where asked, over the baseline's."""
    dominated: float
    """The probability that another variant is as good in loss and all costs, and better in one."""
    bits_per_byte: Interval | None = None
    """The loss in bits per byte of the validation text; None where either is not known."""

    @property
    def on_front(self) -> bool | None:
        """Whether it is on the Pareto front; None where that cannot be told."""
        return False if self.dominated >= NAMED else True if self.dominated <= POSSIBLE else None


@dataclass(frozen=True)
class Choice:
    """The variant with the lowest figure."""

    probabilities: dict[str, float]
    """Variant → the probability that it has the lowest."""

    @property
    def named(self) -> str | None:
        """The variant, where it is sure enough; else None: it cannot be told."""
        variant, probability = max(self.probabilities.items(), key=lambda pair: pair[1])
        return variant if probability >= NAMED else None

    @property
    def possible(self) -> tuple[str, ...]:
        """The variants that cannot be told apart: the probable ones first."""
        left = [(-probability, name) for name, probability in self.probabilities.items() if probability >= POSSIBLE]
        return tuple(name for _, name in sorted(left))


@dataclass(frozen=True)
class Verdict:
    """The answers of a study at its target."""

    best: Choice
    """The lowest loss at the same tokens."""
    cheapest: dict[str, Choice]
    """Unit → the lowest cost of training until the baseline's loss, and of serving where asked."""
    standings: tuple[Standing, ...]
    level: tuple[tuple[str, str], ...]
    """Pairs of variants whose losses surely are the same within LEVEL."""
    slope: float
    """-dL / d ln C of the law at the target, in nats: what turns a loss into compute."""

    @property
    def is_level(self) -> bool:
        """Whether all variants that may be the best are level."""
        possible, level = self.best.possible, {frozenset(pair) for pair in self.level}
        return len(possible) > 1 and all(frozenset(pair) in level for pair in itertools.combinations(possible, 2))


def judge(effects: Effects, law: Law, target: tuple[float, float], costs: Costs) -> Verdict:
    """Return the verdict at a target (N, D); the first variant is the baseline.

    The costs until the baseline's loss move along the slope of the law: a lead of x nats saves the factor
    exp(-x / slope) of the compute.
    """
    against_mean = effects.at(*target)
    draws = len(against_mean)
    mean, slope = (np.resize(each, draws) for each in (law.at(*target), law.slope(*target)))
    differences = against_mean - against_mean[:, :1]
    # Of a law that is nearly flat a lead would be worth more than any number.
    equal_loss = np.exp(np.clip(differences / slope[:, None], -math.log(MOST), math.log(MOST)))
    to_baseline = {unit: cost * equal_loss for unit, cost in costs.training.items()}
    to_baseline |= {unit: cost * equal_loss + after for unit, (cost, after) in costs.lives.items()}
    lives = [cost + after for cost, after in costs.lives.values()]
    dominated = _dominated([differences, *costs.training.values(), *costs.serving.values(), *lives])
    best = shares_best(against_mean)
    standings = [
        Standing(
            name,
            Interval.of(mean + against_mean[:, place]),
            Interval.of(differences[:, place]) if place else None,
            float(best[place]),
            {unit: Interval.of_ratios(cost[:, place] / cost[:, 0]) for unit, cost in to_baseline.items()},
            float(dominated[:, place].mean()),
        )
        for place, name in enumerate(effects.variants)
    ]
    return Verdict(
        _choice(effects.variants, best),
        {unit: _choice(effects.variants, shares_best(cost)) for unit, cost in to_baseline.items()},
        tuple(standings),
        _level(effects.variants, against_mean),
        float(slope.mean()),
    )


def _choice(variants: tuple[str, ...], probabilities: np.ndarray) -> Choice:
    return Choice(dict(zip(variants, probabilities.tolist(), strict=True)))


def _dominated(figures: list[np.ndarray]) -> np.ndarray:
    """Return [draws, variants]: whether another variant is nowhere worse and somewhere better.

    figures: each [draws, variants] or [variants], lower is better.
    """
    draws, variants = figures[0].shape
    every = np.stack([np.broadcast_to(each, (draws, variants)) for each in figures])
    mine, other = every[..., None], every[:, :, None]
    by_other = np.all(other <= mine, axis=0) & np.any(other < mine, axis=0)
    return np.asarray(np.any(by_other, axis=2))


def _level(variants: tuple[str, ...], losses: np.ndarray) -> tuple[tuple[str, str], ...]:
    pairs = [(one, other) for other in range(len(variants)) for one in range(other)]
    return tuple(
        (variants[one], variants[other])
        for one, other in pairs
        if Interval.of(losses[:, other] - losses[:, one]).within(LEVEL)
    )


def crossings(effects: Effects, one: str, other: str, smallest: float, target: tuple[float, float]) -> list[float]:
    """Return the N, from the smallest size up to the target's, at which the lines of two variants cross.

    The lines are the mean difference along the target's ratio of tokens to parameters.
    """
    sizes = np.geomspace(smallest, target[0], _SIZES)
    places = [effects.variants.index(name) for name in (one, other)]
    lines = np.array([effects.lines(size, size * target[1] / target[0])[places] for size in sizes])
    apart = lines[:, 0] - lines[:, 1]
    found = []
    for before in np.flatnonzero(apart[:-1] * apart[1:] < 0):
        share = apart[before] / (apart[before] - apart[before + 1])
        found.append(float(sizes[before] * (sizes[before + 1] / sizes[before]) ** share))
    return found
