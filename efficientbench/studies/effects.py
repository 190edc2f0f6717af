"""The fit of the differences between variants: their effects on the loss, and what these come to at any size.

The losses of V variants are multiplied by V - 1 orthonormal contrasts: all that the variants share (the law, the order
of the data) cancels. In size i, cell j and seed s, each contrast is

    z = e + a (N / N0)^-alpha + b (D / D0)^-beta + k (m_i + t_is + epsilon_ijs)

with the effects e, a, b on the three terms of the law of Hoffmann et al. (2022), and deviations from it: the misfit m
of a size, the trunk t and the branch epsilon. Variants deviate unevenly, so that the contrasts are turned to where
their deviations are independent, and each has a factor k of its own: a variant that follows no law blurs its own
differences, and not those between the others. Given the standard deviations of m, t and epsilon and the exponents, the
effects are normal, and known in closed form. The posterior is the mixture of that over a grid of them, each weighed by
its prior and its likelihood.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from efficientbench.studies.ladder import Ladder

LARGE_SCALE = 1.5
"""Scale of the effects from which on the misfit grows with it."""
DRAWS = 2000
"""Draws of the effects from the posterior."""
EVEN_RUNS = 5
"""How many runs that deviate evenly are added to those of a ladder, before the unevenness is taken from them."""


@dataclass(frozen=True)
class Prior:
    """What is believed of the differences before a run: the grid of the mixture. All in nats, of one contrast."""

    effects: tuple[float, float, float] = (0.02, 0.05, 0.05)
    """Standard deviations of e, a, b at scale 1."""
    scales: tuple[float, ...] = (0.15, 0.5, 1.5)
    """How far the variants lie apart: factors of `effects`, equally probable."""
    misfit: float = 0.0017
    """Standard deviation of a half-normal prior of m's own standard deviation; more where a scale above LARGE_SCALE
    stretches it: variants that lie far apart follow one law less closely."""
    misfit_steps: tuple[float, ...] = (0.0, 0.7, 1.5, 3.0)
    """The grid of that, in units of `misfit`."""
    exponents: tuple[tuple[float, float], ...] = ((0.34, 0.36), (0.25, 0.28), (0.45, 0.45))
    """alpha and beta, equally probable."""
    noise: tuple[float, ...] = tuple(float(each) for each in np.geomspace(0.0008, 0.01, 7))
    """Standard deviations of a branch, equally probable."""
    trunk_ratios: tuple[float, ...] = (0.1, 0.6, 2.5)
    """Variance of a trunk over that of a branch, equally probable."""
    unevenness: tuple[tuple[float, ...], ...] | None = None
    """[contrasts, contrasts]: covariance of the deviations from the law in units of those above; None: all equal."""


@dataclass(frozen=True)
class Effects:
    """Draws of the variants' effects from their posterior."""

    variants: tuple[str, ...]
    coefficients: np.ndarray
    """[draws, variants, 3]: e, a, b against the mean of the variants."""
    exponents: np.ndarray
    """[draws, 2]: alpha, beta."""
    misfits: np.ndarray
    """[draws, variants]: the misfit of a size that was not trained, against the mean of the variants."""
    origin: tuple[float, float]
    """N0 and D0."""

    def at(self, parameters: float, tokens: float) -> np.ndarray:
        """Return [draws, variants]: the losses at a size that was not trained, minus the mean of the variants'."""
        return self._laws(parameters, tokens) + self.misfits

    def lines(self, parameters: float, tokens: float) -> np.ndarray:
        """Return [variants]: the mean of the fitted laws at any size, against the mean of the variants."""
        return self._laws(parameters, tokens).mean(axis=0)

    def _laws(self, parameters: float, tokens: float) -> np.ndarray:
        terms = law_terms(np.array([parameters]), np.array([tokens]), self.origin, self.exponents)[:, 0]
        return np.einsum("kvp,kp->kv", self.coefficients, terms)


class Fit:
    """The fit of ladders of one plan: the same cells, and the same seeds in them.

    In units of a branch's variance, the noise of a trunk's branches has the covariance R = I + ratio, whose inverse is
    known. What remains are the few numbers u = (e, a, b, m of each size): no matrix is larger than these (Woodbury,
    1950).
    """

    def __init__(self, plan: Ladder, prior: Prior | None = None) -> None:
        """Set up the mixture: one Cholesky decomposition for each of its components and contrasts."""
        self.variants = plan.variants
        self.present = plan.present
        self.prior = prior or Prior()
        rows, uneven = contrasts(len(plan.variants)), self.prior.unevenness
        variances, turned = np.linalg.eigh(np.eye(len(rows)) if uneven is None else np.array(uneven))
        self.contrasts = turned.T @ rows
        """[contrasts, variants], whose deviations are independent."""
        self.factors = np.sqrt(variances)
        """[contrasts]: what the deviations of each are multiplied by."""
        self.origin = geometric_mean(plan.parameters), geometric_mean(plan.tokens)
        grid = self.prior
        self.components = np.array(
            [
                (scale, step * grid.misfit * max(scale / LARGE_SCALE, 1), alpha, beta, noise, ratio)
                for scale, step, (alpha, beta), noise, ratio in _mixture(grid, plan.trunks)
            ]
        )
        """[components, 6]: scale, standard deviation of a size, alpha, beta, that of a branch, ratio of a trunk."""
        log_prior = np.array([-0.5 * step**2 for _, step, *_ in _mixture(grid, plan.trunks)])
        self.log_prior = log_prior - np.log(np.exp(log_prior).sum())
        """[components]: logarithms of prior weights whose sum is 1."""
        scale, misfit, _, _, self._noise, _ = self.components.T
        self.exponents = self.components[:, 2:4]
        self._ratios, self._of_ratio = np.unique(self.components[:, 5], return_inverse=True)
        shapes, self._of_shape = np.unique(self.components[:, [2, 3, 5]], axis=0, return_inverse=True)
        self._of_shape = self._of_shape.ravel()
        cells, seeds = self.present.nonzero()
        size = plan.size_of[cells]
        sizes = np.eye(len(plan.sizes))[size]
        self._trunk = np.unique(size * self.present.shape[1] + seeds, return_inverse=True)[1]
        terms = law_terms(plan.parameters[cells], plan.tokens[cells], self.origin, shapes[:, :2])
        designs = np.concatenate([terms, np.broadcast_to(sizes, (len(shapes), *sizes.shape))], axis=2)
        self._aside = np.stack([self._whitened(each, ratio) for each, ratio in zip(designs, shapes[:, 2], strict=True)])
        """[shapes, runs, numbers]: R^-1 times what each number of u adds to each run."""
        products = designs.transpose(0, 2, 1) @ self._aside
        effects = scale[:, None, None] * np.array(grid.effects) / self.factors[:, None]
        misfits = np.broadcast_to(misfit[:, None, None], (*effects.shape[:2], len(plan.sizes)))
        spread = np.concatenate([effects, misfits], axis=2)
        """[components, contrasts, numbers]: prior standard deviations of u / k."""
        inner = products[self._of_shape, None] / self._noise[:, None, None, None] ** 2
        factor = np.linalg.cholesky(np.eye(spread.shape[2]) + spread[..., None] * spread[:, :, None] * inner)
        self._roots = np.linalg.inv(factor) * spread[:, :, None]
        self.roots = self._roots * self.factors[:, None, None]
        """[components, contrasts, numbers, numbers]: W with W'W the covariance of u, which no loss changes."""
        branches = np.bincount(self._trunk)
        determinants = 0.5 * np.log1p(np.outer(self._ratios, branches)).sum(axis=1)
        self._log_scale = -(
            len(rows) * (len(cells) * np.log(self._noise) + determinants[self._of_ratio])
            + np.log(np.diagonal(factor, axis1=2, axis2=3)).sum(axis=(1, 2))
        )

    def _whitened(self, values: np.ndarray, ratio: float) -> np.ndarray:
        """Return R^-1 times values [runs, columns]."""
        branches = np.bincount(self._trunk)
        sums = np.zeros((len(branches), values.shape[1]))
        np.add.at(sums, self._trunk, values)
        return values - ((ratio / (1 + ratio * branches))[:, None] * sums)[self._trunk]

    def values(self, losses: np.ndarray) -> np.ndarray:
        """Return [..., contrasts, runs] of losses [..., variants, cells, seeds]."""
        return self.contrasts @ losses[..., self.present]

    def posterior(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the posterior for values [ladders, contrasts, runs] in nats.

        Returns:
            The weights of the mixture's components [ladders, components], and their means of u
            [ladders, components, contrasts, numbers].
        """
        ladders, count, runs = values.shape
        flat = (values / self.factors[:, None]).reshape(-1, runs).T
        squares = np.stack([(flat * self._whitened(flat, ratio)).sum(axis=0) for ratio in self._ratios])
        sums = (self._aside.transpose(0, 2, 1) @ flat)[self._of_shape] / self._noise[:, None, None] ** 2
        # [components, contrasts, numbers, ladders]
        standard = self._roots @ sums.reshape(len(sums), -1, ladders, count).transpose(0, 3, 1, 2)
        squares = squares[self._of_ratio].reshape(-1, ladders, count).sum(axis=2) / self._noise[:, None] ** 2
        logs = -0.5 * (squares - (standard**2).sum(axis=(1, 2))).T + self._log_scale + self.log_prior
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        means = self.roots.transpose(0, 1, 3, 2) @ standard
        return weights / weights.sum(axis=1, keepdims=True), means.transpose(3, 0, 1, 2)

    def moments(self, values: np.ndarray, target: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what each component says of the contrasts at a target, N and D, in nats.

        Returns:
            The weights [ladders, components], and the means [ladders, components, contrasts] and variances [components,
            contrasts] of the contrasts at a size that was not trained, for values [ladders, contrasts, runs].
        """
        terms = law_terms(np.array(target[:1]), np.array(target[1:]), self.origin, self.exponents)[:, 0]
        weights, means = self.posterior(values)
        at_target = np.einsum("lmcp,mp->lmc", means[..., :3], terms)
        variances = (np.einsum("mcqp,mp->mcq", self.roots[..., :3], terms) ** 2).sum(axis=2)
        return weights, at_target, variances + np.outer(self.components[:, 1], self.factors) ** 2

    def draw(self, losses: np.ndarray, draws: int = DRAWS, seed: int = 0) -> Effects:
        """Return draws of the effects for losses [variants, cells, seeds] in nats."""
        return self.draw_each(self.values(losses)[None], draws, seed)[0]

    def draw_each(self, values: np.ndarray, draws: int = DRAWS, seed: int = 0) -> list[Effects]:
        """Return draws of the effects for each of several ladders' values [ladders, contrasts, runs]."""
        chance = np.random.default_rng(seed)
        found = []
        for taken, numbers in self.draw_numbers(values, draws, chance):
            misfit = np.outer(self.components[taken, 1], self.factors) * chance.standard_normal(numbers.shape[:2])
            coefficients = self.contrasts.T @ numbers[..., :3]
            found.append(
                Effects(self.variants, coefficients, self.exponents[taken], misfit @ self.contrasts, self.origin)
            )
        return found

    def draw_numbers(
        self, values: np.ndarray, draws: int, chance: np.random.Generator
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield, for each ladder, draws of the component [draws] and of u [draws, contrasts, numbers]."""
        for weights, means in zip(*self.posterior(values), strict=True):
            taken = chance.choice(len(weights), size=draws, p=weights)
            normal = chance.standard_normal((draws, *means.shape[1:]))
            yield taken, means[taken] + (normal[:, :, None] @ self.roots[taken])[:, :, 0]


def fitted_to(prior: Prior, ladder: Ladder) -> Prior:
    """Return the prior with its grids moved to what the ladder shows beyond their ends.

    The noise then lies around that found between seeds. Variants that lie farther apart than the largest scale says get
    larger scales: by those of the grid, the fit would take their differences for noise. Variants that deviate unevenly
    from the law have what the ladder shows of that.
    """
    return replace(_farther(_noisier(prior, ladder), ladder), unevenness=_unevenness(prior, ladder))


def _unevenness(prior: Prior, ladder: Ladder) -> tuple[tuple[float, ...], ...] | None:
    """Return the covariance of the contrasts' residuals from the law, shrunk to equal ones, with determinant 1.

    Residuals are those of least squares with the middle of the exponents; for shrinking see Ledoit and Wolf (2004).
    """
    rows = contrasts(len(ladder.variants))
    cells, _ = ladder.present.nonzero()
    origin = geometric_mean(ladder.parameters), geometric_mean(ladder.tokens)
    terms = law_terms(ladder.parameters[cells], ladder.tokens[cells], origin, np.array(prior.exponents[:1]))[0]
    degrees = len(cells) - np.linalg.matrix_rank(terms)
    values = rows @ ladder.losses[:, ladder.present]
    residuals = values - values @ np.linalg.pinv(terms).T @ terms.T
    squares = residuals @ residuals.T
    mean = np.trace(squares) / len(rows)
    if len(rows) == 1 or degrees < 1 or mean <= 0:
        return None
    found = squares + EVEN_RUNS * mean / degrees * np.eye(len(rows))
    found /= np.linalg.det(found) ** (1 / len(rows))
    return tuple(map(tuple, found.tolist()))


def _farther(prior: Prior, ladder: Ladder) -> Prior:
    rows = contrasts(len(ladder.variants))
    cells = [ladder.losses[:, cell, seeds] for cell, seeds in enumerate(ladder.present) if seeds.any()]
    means = [rows @ each.mean(axis=1) for each in cells]
    found = float(np.sqrt(np.mean(np.square(means)))) / float(np.linalg.norm(prior.effects))
    scales = list(prior.scales)
    if found > scales[-1]:
        # Effects that cancel in the ladder's middle are larger than what is seen there.
        while scales[-1] < 10 * found:
            scales.append(scales[-1] * 10 / 3)
    return replace(prior, scales=tuple(scales))


def _noisier(prior: Prior, ladder: Ladder) -> Prior:
    found = seed_noise(ladder)
    if found is None or prior.noise[1] <= found <= prior.noise[-2]:
        return prior
    middle = geometric_mean(np.array(prior.noise))
    return replace(prior, noise=tuple(max(found, 1e-7) / middle * each for each in prior.noise))


def seed_noise(ladder: Ladder, rows: np.ndarray | None = None) -> float | None:
    """Return the standard deviation between seeds in one cell, in nats; None for a single seed.

    rows: [rows, variants], the combinations of the variants' losses that are meant; None: the contrasts.
    """
    rows = contrasts(len(ladder.variants)) if rows is None else rows
    squares, degrees = 0.0, 0
    for cell, seeds in enumerate(ladder.present):
        values = rows @ ladder.losses[:, cell, seeds]
        if values.shape[1] > 1:
            squares += float(((values - values.mean(axis=1, keepdims=True)) ** 2).sum())
            degrees += values.shape[0] * (values.shape[1] - 1)
    return (squares / degrees) ** 0.5 if degrees else None


def _mixture(prior: Prior, trunks: bool) -> Iterator[tuple[float, float, tuple[float, float], float, float]]:
    ratios = prior.trunk_ratios if trunks else (0.0,)
    return itertools.product(prior.scales, prior.misfit_steps, prior.exponents, prior.noise, ratios)


def contrasts(variants: int) -> np.ndarray:
    """Return [variants - 1, variants] of orthonormal rows whose sum is 0 (Helmert's)."""
    rows = np.tril(np.ones((variants - 1, variants)))
    rows[np.arange(variants - 1), np.arange(1, variants)] = -np.arange(1, variants)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def law_terms(
    parameters: np.ndarray, tokens: np.ndarray, origin: tuple[float, float], exponents: np.ndarray
) -> np.ndarray:
    """Return [exponents, runs, 3]: 1, (N / N0)^-alpha and (D / D0)^-beta, for exponents [exponents, 2]."""
    logs = np.stack([np.log(parameters / origin[0]), np.log(tokens / origin[1])], axis=1)
    falls = np.exp(-exponents[:, None, :] * logs)
    return np.concatenate([np.ones_like(falls[..., :1]), falls], axis=2)


def geometric_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the geometric mean of positive values."""
    return float(np.exp(np.mean(np.log(values))))
