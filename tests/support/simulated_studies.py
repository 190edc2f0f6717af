"""Studies whose truth is known: ladders of losses drawn from laws, with the flaws that real ladders have.

The law is Chinchilla's, as refitted by Besiroglu et al. (2024, arXiv 2404.10102). Variants differ in A and B, and where
asked in the exponents; the difference at the target is given, and E makes up for the rest. Noise between seeds is that
of equal runs of 124M parameters (public_runs/equal_runs_124M.csv: 0.0014 nats). Losses at the target are of tuned runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from efficientbench.studies.effects import Fit, Prior, fitted_to
from efficientbench.studies.ladder import Cell, Ladder
from efficientbench.studies.simulate import NAMED, shares_best

E, A, B, ALPHA, BETA = 1.8172, 482.01, 2085.43, 0.3478, 0.3658
SIZES = {"50M": 50e6, "125M": 125e6, "350M": 350e6}
RATIOS = (10, 20, 40)
TARGET = 1.5e9, 30e9
STANDARD_ERROR = 0.0035
"""The standard error of a difference at the target, in nats: the unit of the gaps."""


@dataclass(frozen=True)
class Truth:
    """How simulated studies are drawn. All lengths in nats."""

    name: str
    variants: int = 3
    gap: float = 0.0
    """The lead of the first variant over all others at the target, in standard errors."""
    apart: float = 0.03
    """Standard deviation of ln A and ln B between variants."""
    exponents: float = 0.0
    """Standard deviation of alpha and beta between variants."""
    branch: float = 0.0012
    trunk: float = 0.0009
    shared: float = 0.004
    """Standard deviation of what all variants share in a cell and seed."""
    curvature: float = 0.0
    """Standard deviation of a variant's further loss for each square of ln(N / 130M)."""
    one_off: float = 0.0
    """The error of one variant's losses at one size, in nats."""
    heavy_tails: bool = False
    """Whether noise is Student's t with 3 degrees of freedom, of the same standard deviation."""
    uneven: bool = False
    """Whether the smallest size has three times the noise of the largest."""
    noisy: float = 1.0
    """How many times the noise of the others one variant has."""
    rates: float = 0.0
    """Standard deviation of a variant's error in ln(learning rate) at the smallest size, and of its growth per ln N."""


@dataclass(frozen=True)
class Studies:
    """Simulated studies of one kind."""

    truth: Truth
    plan: Ladder
    losses: np.ndarray
    """[studies, variants, cells, seeds]."""
    at_target: np.ndarray
    """[studies, variants]: the variants' own losses at the target."""


def cells(sizes: dict[str, float] | None = None, ratios: tuple[int, ...] = RATIOS) -> tuple[Cell, ...]:
    return tuple(Cell(size, n, n * ratio) for size, n in (sizes or SIZES).items() for ratio in ratios)


def plan(variants: int, seeds: int = 3, sizes: dict[str, float] | None = None) -> Ladder:
    """Return a ladder of zeros: its cells, seeds and names."""
    ladder = cells(sizes)
    return Ladder(tuple(f"v{each}" for each in range(variants)), ladder, np.zeros((variants, len(ladder), seeds)))


def simulate(
    truth: Truth, studies: int, seeds: int = 3, seed: int = 0, sizes: dict[str, float] | None = None
) -> Studies:
    """Return studies drawn from a truth, the same ones for the same arguments.

    A study with further sizes or seeds has the same truth, and the same runs where both have them.
    """
    every = [
        _study(truth, seeds, np.random.default_rng([seed, *truth.name.encode(), each]), sizes)
        for each in range(studies)
    ]
    losses, at_target = zip(*every, strict=True)
    return Studies(truth, plan(truth.variants, seeds, sizes), np.stack(losses), np.stack(at_target))


def _study(
    truth: Truth, seeds: int, chance: np.random.Generator, sizes: dict[str, float] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses [variants, cells, seeds], and those at the target [variants]."""
    ladder = cells(sizes)
    n, d = (np.array([getattr(cell, name) for cell in ladder]) for name in ("parameters", "tokens"))
    variants = truth.variants
    scale = (
        chance.standard_normal((4, variants, 1)) * np.array([truth.apart] * 2 + [truth.exponents] * 2)[:, None, None]
    )
    bend = truth.curvature * chance.standard_normal((variants, 1))
    off_variant, off_size = chance.integers(variants), chance.integers(3)
    error, growth = truth.rates * chance.standard_normal((2, variants, 1))

    def law(parameters: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        # The exponents turn about the middle of the ladder: there, A and B alone are what they say.
        size, text = np.log(parameters / 130e6), np.log(tokens / 2.6e9)
        model = A * 130e6**-ALPHA * np.exp(scale[0] - (ALPHA + scale[2]) * size)
        data = B * 2.6e9**-BETA * np.exp(scale[1] - (BETA + scale[3]) * text)
        return E + model + data + bend * size**2

    target = law(*(np.array([each]) for each in TARGET))
    apart = np.where(np.arange(variants) == 0, 0.0, truth.gap * STANDARD_ERROR)[:, None]
    level = target.mean() + apart - target
    mean = law(n, d) + level
    mean[off_variant] += truth.one_off * (n == list((sizes or SIZES).values())[off_size])
    if truth.rates:
        mean = mean + penalty(error + growth * np.log(n / 50e6))
    noisy = np.where(np.arange(variants) == off_variant, truth.noisy, 1.0)[:, None]
    return mean[..., None] + _noise(truth, n, seeds, chance, noisy), (target + level)[:, 0]


def penalty(error: np.ndarray) -> np.ndarray:
    """Return the loss that an error of ln(learning rate) costs, in nats: 0.01 at a factor of 2, and more above."""
    return 0.01 * (error / math.log(2)) ** 2 * np.where(error > 0, 1.5, 0.75)


def _noise(truth: Truth, n: np.ndarray, seeds: int, chance: np.random.Generator, noisy: np.ndarray) -> np.ndarray:
    """Return [variants, cells, seeds]; noisy: [variants, 1], the factors of the variants' noise.

    Each seed has a generator of its own, so that further ones change none.
    """
    of_size = {size: place for place, size in enumerate(dict.fromkeys(n))}
    size_of = np.array([of_size[each] for each in n])
    uneven = np.interp(np.log(n), np.log([50e6, 350e6]), [3, 1]) / 2 if truth.uneven else np.ones(len(n))
    noise = np.empty((truth.variants, len(n), seeds))
    for seed, own in enumerate(chance.spawn(seeds)):
        for size, of in enumerate(own.spawn(len(of_size))):
            here = size_of == size
            count = int(here.sum())
            trunk = truth.trunk * _draw(truth, of, truth.variants, 1)
            branch = truth.branch * _draw(truth, of, truth.variants, count)
            noise[:, here, seed] = (trunk + branch) * noisy * uneven[here] + truth.shared * _draw(truth, of, 1, count)
    return noise


def _draw(truth: Truth, chance: np.random.Generator, *shape: int) -> np.ndarray:
    return chance.standard_t(3, shape) / 3**0.5 if truth.heavy_tails else chance.standard_normal(shape)


@dataclass(frozen=True)
class Outcome:
    """What the fit made of simulated studies: numbers of studies."""

    named: int
    wrong: int
    """Named, although another variant is better."""
    covered: int
    """Studies in which the 95 % interval of the second variant's difference holds the truth."""


def outcome(studies: Studies, uneven: bool = True) -> Outcome:
    """Fit the studies, and count; where not `uneven`, as if all variants deviated evenly from the law."""
    named = wrong = covered = 0
    for losses, truth in zip(studies.losses, studies.at_target, strict=True):
        prior = fitted_to(Prior(), replace(studies.plan, losses=losses))
        drawn = Fit(studies.plan, prior if uneven else replace(prior, unevenness=None)).draw(losses).at(*TARGET)
        best = shares_best(drawn)
        if best.max() >= NAMED:
            named += 1
            wrong += bool(truth[best.argmax()] > truth.min() + 1e-9)
        low, high = np.quantile(drawn[:, 1] - drawn[:, 0], (0.025, 0.975))
        covered += bool(low <= truth[1] - truth[0] <= high)
    return Outcome(named, wrong, covered)


TIE = Truth("identical", apart=0.0)
LAWS = Truth("different laws")
FLAWS = {
    "curvature": replace(LAWS, curvature=0.0003),
    "one size off": replace(LAWS, one_off=0.005),
    "t3 noise": replace(LAWS, heavy_tails=True),
    "uneven noise": replace(LAWS, uneven=True),
    "4 x apart": replace(LAWS, apart=0.12),
    "own exponents": replace(LAWS, exponents=0.003),
    "one noisy variant": replace(LAWS, noisy=4),
}
RULE = replace(LAWS, name="rates by the rule", rates=0.05)
MISTUNED = replace(LAWS, name="mistuned rates", rates=0.15)
