"""What a ladder will tell: its precision before any run, and the chance that more runs end with a name.

Both rest on the fit's prior alone: simulated ladders are drawn from it, and more runs narrow the posterior as it says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from efficientbench.studies.effects import Fit, Prior, law_terms
from efficientbench.studies.ladder import Ladder
from efficientbench.studies.law import PUBLISHED

NAMED = 0.975
"""The probability of being best at which a variant is named."""
POWER = 0.8
PLANNED_NOISE = 0.0014
"""Standard deviation between equal runs of 124M parameters, in nats: that of 490 published runs in 26 groups."""
LADDERS = 200
FUTURES = 200
FUTURE_DRAWS = 1000
_HALVINGS = 10


@dataclass(frozen=True)
class Precision:
    """What a ladder can see, before it is trained."""

    deviation: float
    """Median of the standard deviation of a difference between two variants at the target, in nats."""
    gap: float
    """The difference at which the better of two variants is named in POWER of the ladders, in nats."""
    compute: float
    """The share of the training's compute that is worth that gap, by the published law."""


def precision(
    plan: Ladder, target: tuple[float, float], prior: Prior | None = None, noise: float = PLANNED_NOISE
) -> Precision:
    """Return the precision of a plan at a target (N, D), from ladders of two variants drawn from the prior.

    noise: what the branches of these ladders have instead of the prior's, in nats.
    """
    pair = Ladder.planned(plan.variants[:2], plan.cells, plan.losses.shape[2], plan.trunks)
    fit = Fit(pair, prior)
    chance = np.random.default_rng(0)
    # The prior's weights; their sum is 1.
    weights = np.exp(fit.log_prior)
    truth = fit.components[chance.choice(len(fit.components), size=LADDERS, p=weights)]
    truth[:, 4] = noise
    values, at_target = _ladders(pair, fit, truth, target, chance)
    deviations = math.sqrt(2) * _deviations(*fit.moments(values, target))
    low, high = 0.0, 20 * float(np.median(deviations))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # The contrast of two variants is their difference over the root of 2.
        shifted = values + (middle / math.sqrt(2) - at_target)[:, None, None]
        if (_better(*fit.moments(shifted, target)) >= NAMED).mean() >= POWER:
            high = middle
        else:
            low = middle
    slope = float(PUBLISHED.slope(*target)[0])
    return Precision(float(np.median(deviations)), high, math.expm1(high / slope))


def _ladders(
    pair: Ladder, fit: Fit, truth: np.ndarray, target: tuple[float, float], chance: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the contrast of two variants in each run [ladders, 1, runs], and at the target [ladders], in nats."""
    cells, seeds = pair.present.nonzero()
    sizes = pair.size_of[cells]
    values, at_target = [], []
    for scale, misfit, alpha, beta, noise, ratio in truth:
        e, a, b = np.array(fit.prior.effects) * scale * chance.standard_normal(3)
        mean, end = (
            e + a * (n / fit.origin[0]) ** -alpha + b * (d / fit.origin[1]) ** -beta
            for n, d in ((pair.parameters[cells], pair.tokens[cells]), target)
        )
        trunks = noise * ratio**0.5 * chance.standard_normal((len(pair.sizes), pair.losses.shape[-1]))
        own = misfit * chance.standard_normal(len(pair.sizes))[sizes] + trunks[sizes, seeds]
        values.append(mean + own + noise * chance.standard_normal(len(cells)))
        at_target.append(end + misfit * chance.standard_normal())
    return np.stack(values)[:, None], np.array(at_target)


def _deviations(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return [ladders]: the standard deviation of the first contrast, from `Fit.moments`."""
    first = means[..., 0]
    mean = (weights * first).sum(axis=1, keepdims=True)
    return np.sqrt((weights * (variances[:, 0] + (first - mean) ** 2)).sum(axis=1))


_erf = np.frompyfunc(math.erf, 1, 1)


def _better(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return [ladders]: the probability that the first contrast is above 0, from `Fit.moments`."""
    return (weights * 0.5 * (1 + _erf(means[..., 0] / np.sqrt(2 * variances[:, 0])).astype(float))).sum(axis=1)


class Extension:
    """Further runs of a ladder, and how likely they are to end with a name."""

    def __init__(self, ladder: Ladder, extended: Ladder, prior: Prior) -> None:
        """Set up the fits of the present runs and of all.

        Args:
            ladder: the plan of the runs that are there.
            extended: the plan with more seeds, or with sizes after the present ones. Its losses do not matter.
            prior: the one of both fits.
        """
        self._now, self._later = Fit(ladder, prior), Fit(extended, prior)
        self._extended = extended
        places = [extended.cells.index(cell) for cell in ladder.cells]
        known = np.zeros(extended.present.shape, bool)
        known[places, : ladder.present.shape[1]] = ladder.present
        self._known = known[extended.present]
        """[runs]: which of all runs are there."""

    def chance(self, losses: np.ndarray, target: tuple[float, float], seed: int = 0) -> float:
        """Return the chance of a name at a target (N, D), given losses [variants, cells, seeds] in nats.

        The losses of further runs are drawn from the posterior of the present ones, and fitted with them.
        """
        futures = self._futures(self._now.values(losses)[None], np.random.default_rng(seed))
        drawn = self._later.draw_each(futures, FUTURE_DRAWS, seed)
        return float(np.mean([shares_best(effects.at(*target)).max() >= NAMED for effects in drawn]))

    def _futures(self, values: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        """Return [futures, contrasts, runs] of all runs, from the present ones' values [1, contrasts, runs]."""
        taken, numbers = next(self._now.draw_numbers(values, FUTURES, chance))
        _, misfit, _, _, noise, ratio = self._now.components[taken].T[:, :, None, None]
        misfit, noise = (each * self._now.factors[:, None] for each in (misfit, noise))
        cells, seeds = self._extended.present.nonzero()
        size = self._extended.size_of[cells]
        shape = *numbers.shape[:2], len(self._extended.sizes), self._extended.present.shape[1]
        offsets = misfit * chance.standard_normal(shape[:3])
        offsets[..., : numbers.shape[2] - 3] = numbers[..., 3:]
        trunks = noise[..., None] * ratio[..., None] ** 0.5 * chance.standard_normal(shape)
        parameters, tokens = self._extended.parameters[cells], self._extended.tokens[cells]
        at = law_terms(parameters, tokens, self._now.origin, self._now.exponents[taken])
        found = np.einsum("fcp,frp->fcr", numbers[..., :3], at) + offsets[..., size] + trunks[..., size, seeds]
        found += noise * chance.standard_normal(found.shape)
        found[..., self._known] = values
        return found


def shares_best(losses: np.ndarray) -> np.ndarray:
    """Return [variants]: in which share of the draws [draws, variants] each has the lowest loss."""
    return np.bincount(losses.argmin(axis=1), minlength=losses.shape[1]) / len(losses)
