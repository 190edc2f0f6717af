"""The fit of the loss: the law of Hoffmann et al. (2022) through the mean of the variants.

    L = E + A / N^alpha + B / D^beta

alpha and beta lie on a grid; E, A and B are linear and not negative. Noise has the covariance of trunks, branches and
sizes, whose shares lie on a grid too, while its scale follows from the residuals: the posterior is a mixture of
Student's t.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from efficientbench.basics.errors import MetricsError
from efficientbench.studies.effects import geometric_mean, law_terms
from efficientbench.studies.ladder import Ladder

EXPONENT = 0.36
EXPONENT_SPREAD = 0.08
"""The normal prior of alpha and of beta."""
GRID = np.linspace(0.06, 0.66, 26)
TRUNK_RATIOS = (0.1, 0.6, 2.5)
"""Variance of a trunk over that of a branch, equally probable."""
SIZE_RATIOS = (0.0, 0.5, 4.0)
"""Variance of a size's misfit over that of a branch, equally probable."""
OUTLIER = 5.0
"""Robust standard deviations beyond which a run is an outlier."""
LEAST_TRIMMED = 18
"""Runs without which none is called an outlier: a law of five numbers goes through half of nine, wherever they lie."""
_DRAWS = 2000
_PATIENCE = 20


@dataclass(frozen=True)
class Law:
    """Draws of a law from its posterior."""

    draws: np.ndarray
    """[draws, 5]: E, A, B, alpha, beta; losses in nats, N in parameters, D in tokens."""
    noise: np.ndarray
    """[draws, 2]: the standard deviations of one run's loss and of a size, in nats."""

    @property
    def mean(self) -> tuple[float, ...]:
        """E, A, B, alpha and beta: exponents and E by their means, A and B by their geometric ones."""
        logs = np.exp(np.log(np.maximum(self.draws[:, 1:3], 1e-300)).mean(axis=0))
        e, _, _, alpha, beta = self.draws.mean(axis=0)
        return float(e), float(logs[0]), float(logs[1]), float(alpha), float(beta)

    def at(self, parameters: float, tokens: float) -> np.ndarray:
        """Return [draws]: the losses at a size, in nats."""
        return self.draws[:, 0] + sum(self._falls(parameters, tokens))

    def slope(self, parameters: float, tokens: float) -> np.ndarray:
        """Return [draws]: -dL / d ln C in nats, along which N and D grow alike.

        With C = 6 N D, each grows by half of ln C.
        """
        model, data = self._falls(parameters, tokens)
        return 0.5 * (self.draws[:, 3] * model + self.draws[:, 4] * data)

    def _falls(self, parameters: float, tokens: float) -> tuple[np.ndarray, np.ndarray]:
        _, a, b, alpha, beta = self.draws.T
        return a * parameters**-alpha, b * tokens**-beta


PUBLISHED = Law(np.array([[1.8172, 482.01, 2085.43, 0.3478, 0.3658]]), np.zeros((1, 2)))
"""Chinchilla's law as refitted by Besiroglu et al. (2024, arXiv 2404.10102), for a plan that has no losses yet."""
PUBLISHED_FROM = 57e6
"""Parameters of the smallest model that it was fitted to."""


@dataclass(frozen=True)
class HeldOut:
    """The largest size with the most tokens, predicted from the other sizes."""

    size: str
    predicted: float
    """In nats, as all below."""
    low: float
    """The 95 % interval of what would be measured."""
    high: float
    measured: float

    @property
    def is_inside(self) -> bool:
        """Whether the measured loss lies in the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Runs:
    """Losses with their places in a ladder."""

    losses: np.ndarray
    """[runs] in nats; every array below has the same length."""
    parameters: np.ndarray
    tokens: np.ndarray
    size: np.ndarray
    """Equal numbers for runs of one size."""
    trunk: np.ndarray
    """Equal numbers for branches of one trunk."""

    @classmethod
    def of(cls, ladder: Ladder) -> Runs:
        """Return the mean over the variants, for each cell and seed in which all were trained."""
        cells, seeds = ladder.present.nonzero()
        size = ladder.size_of[cells]
        trunk = size * ladder.losses.shape[-1] + seeds if ladder.trunks else np.arange(len(cells))
        return cls(
            ladder.losses[:, ladder.present].mean(axis=0), ladder.parameters[cells], ladder.tokens[cells], size, trunk
        )

    def part(self, kept: np.ndarray) -> Runs:
        """Return the runs whose place in `kept` [runs] is true."""
        return Runs(*(each[kept] for each in (self.losses, self.parameters, self.tokens, self.size, self.trunk)))


def law_of(ladder: Ladder) -> tuple[Law, np.ndarray]:
    """Return the law of the variants' mean, and [variants, cells, seeds]: which runs are outliers, left out of it.

    Raises MetricsError as `fit_law`.
    """
    outlying = np.zeros(ladder.losses.shape, bool)
    for place, variant in enumerate(ladder.variants):
        own = ladder.part(variants=[variant])
        outlying[place, own.present] = outliers(Runs.of(own))
    kept = np.where(outlying.any(axis=0), np.nan, ladder.losses)
    return fit_law(Runs.of(replace(ladder, losses=kept))), outlying


def fit_law(runs: Runs, draws: int = _DRAWS, seed: int = 0) -> Law:
    """Return the law of some runs.

    Raises:
        MetricsError: fewer than five runs, or no draw has E, A and B of 0 or more: the losses follow no such law.
    """
    if len(runs.losses) < 5:
        raise MetricsError(f"{len(runs.losses)} losses: the law of five numbers needs at least 5")
    mixture = _Mixture(runs)
    chance = np.random.default_rng(seed)
    kept: list[np.ndarray] = []
    for _ in range(_PATIENCE):
        found = mixture.draw(chance, draws)
        kept.append(found[(found[:, :3] >= 0).all(axis=1)])
        if sum(map(len, kept)) >= draws:
            taken = np.concatenate(kept)[:draws]
            return Law(taken[:, :5], taken[:, 5:])
    raise MetricsError("the losses follow no law E + A / N^alpha + B / D^beta with E, A and B of 0 or more")


class _Mixture:
    """The posterior of a law: one Student's t for each pair of exponents and covariance of the noise."""

    def __init__(self, runs: Runs) -> None:
        count = len(runs.losses)
        self.exponents, self.origin, terms = _grid(runs)
        prior = -0.5 * (((self.exponents - EXPONENT) / EXPONENT_SPREAD) ** 2).sum(axis=1)
        same_size, same_trunk = (each[:, None] == each for each in (runs.size, runs.trunk))
        has_sizes, has_trunks = (len(set(each)) < count for each in (runs.size, runs.trunk))
        self.degrees = count - 3
        parts = []
        self.ratios = []
        for trunk, size in itertools.product(
            TRUNK_RATIOS if has_trunks else (0.0,), SIZE_RATIOS if has_sizes else (0.0,)
        ):
            factor = np.linalg.cholesky(np.eye(count) + trunk * same_trunk + size * same_size)
            whiten = np.linalg.inv(factor)
            parts.append(_regressions(whiten @ terms, whiten @ runs.losses))
            self.ratios.append((trunk, size, np.log(np.diagonal(factor)).sum()))
        self.means, self.roots, squares, log_determinants = (np.stack(each) for each in zip(*parts, strict=True))
        """[covariances, pairs, …]."""
        self.variances = squares / self.degrees
        scale = np.array([each[2] for each in self.ratios])[:, None]
        # E, A (at N0) and B (at D0) are flat, and so is the logarithm of the noise.
        logs_of = prior - scale - log_determinants - 0.5 * self.degrees * np.log(squares)
        weights = np.exp(logs_of - logs_of.max())
        self.weights = (weights / weights.sum()).ravel()

    def draw(self, chance: np.random.Generator, draws: int) -> np.ndarray:
        """Return [draws, 7]: E, A, B, alpha, beta, and the standard deviations of a run and of a size."""
        taken = chance.choice(len(self.weights), size=draws, p=self.weights)
        covariance, pair = np.divmod(taken, len(self.exponents))
        variance = self.variances[covariance, pair] * self.degrees / chance.chisquare(self.degrees, draws)
        normal = chance.standard_normal((draws, 3)) * np.sqrt(variance)[:, None]
        linear = self.means[covariance, pair] + np.einsum("kpq,kq->kp", self.roots[covariance, pair], normal)
        exponents = self.exponents[pair]
        ratios = np.array([each[:2] for each in self.ratios])[covariance]
        linear[:, 1:] *= np.array(self.origin) ** exponents
        noise = np.sqrt(variance[:, None] * np.stack([1 + ratios[:, 0], ratios[:, 1]], axis=1))
        return np.concatenate([linear, exponents, noise], axis=1)


def _regressions(terms: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the least squares of losses [runs] on terms [pairs, runs, 3].

    Returns:
        The coefficients [pairs, 3], the root of their covariance at noise 1 [pairs, 3, 3], the squares of the residuals
        [pairs], and half the logarithm of the determinant of the products of the terms [pairs].
    """
    orthogonal, triangle = np.linalg.qr(terms)
    aside = losses @ orthogonal
    root = np.linalg.inv(triangle)
    residuals = losses @ losses - (aside**2).sum(axis=1)
    determinants = np.log(np.abs(np.diagonal(triangle, axis1=1, axis2=2))).sum(axis=1)
    return np.einsum("mpq,mq->mp", root, aside), root, np.maximum(residuals, 1e-18), determinants


def outliers(runs: Runs) -> np.ndarray:
    """Return [runs]: which lie further from the law than OUTLIER robust standard deviations.

    That law goes through the nearest half of the runs (least trimmed squares: Rousseeuw and Van Driessen, 2006), then
    through all but the outliers: in a fit through all, five of 245 move beta by a third, and hide others.
    """
    inside = np.ones(len(runs.losses), bool)
    if len(inside) < LEAST_TRIMMED:
        return ~inside
    for narrow in (True, False):
        for _ in range(_PATIENCE):
            distance = np.abs(_residuals(runs, inside))
            half = np.median(distance)
            nearer = distance <= (half if narrow else OUTLIER * max(1.4826 * half, 1e-12))
            if (nearer == inside).all():
                break
            inside = nearer
    return ~inside


def _residuals(runs: Runs, inside: np.ndarray) -> np.ndarray:
    """Return [runs]: losses minus the law that is nearest to those `inside` by least squares over the grid."""
    exponents, _, terms = _grid(runs)
    coefficients, _, squares, _ = _regressions(terms[:, inside], runs.losses[inside])
    prior = (((exponents - EXPONENT) / EXPONENT_SPREAD) ** 2).sum(axis=1)
    best = int((prior + max(inside.sum() - 3, 1) * np.log(squares)).argmin())
    return runs.losses - terms[best] @ coefficients[best]


def _grid(runs: Runs) -> tuple[np.ndarray, tuple[float, float], np.ndarray]:
    """Return the grid's alpha and beta [pairs, 2], N0 and D0, and the law's terms there [pairs, runs, 3].

    N0 and D0 are the geometric means of the runs'.
    """
    origin = geometric_mean(runs.parameters), geometric_mean(runs.tokens)
    exponents = np.array(list(itertools.product(GRID, GRID)))
    return exponents, origin, law_terms(runs.parameters, runs.tokens, origin, exponents)


def held_out(ladder: Ladder, seed: int = 0) -> HeldOut:
    """Return the largest size's loss at the most tokens as the other sizes predict it, and as it was measured."""
    largest = ladder.size_of == ladder.size_of[-1]
    law = fit_law(Runs.of(ladder.part(cells=~largest)), seed=seed)
    place = max(np.flatnonzero(largest & ladder.present.any(axis=1)), key=lambda cell: ladder.tokens[cell])
    seeds = ladder.present[place]
    chance = np.random.default_rng(seed)
    own = law.noise * chance.standard_normal(law.noise.shape) / np.array([seeds.sum() ** 0.5, 1.0])
    drawn = law.at(ladder.parameters[place], ladder.tokens[place]) + own.sum(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    measured = float(ladder.losses[:, place, seeds].mean())
    return HeldOut(ladder.cells[place].size, float(np.median(drawn)), float(low), float(high), measured)
