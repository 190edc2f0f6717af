"""The effect of a curriculum: compare held-out losses of runs with the same seeds at equal loss tokens.

`paced − shuffled` is the effect of the order, `shuffled − random` of the mixture, `paced − random_levels` of the
difficulties, `reversed − shuffled` of the opposite order. Easy samples are mostly short, so that runs of equal steps
have learned from different numbers of tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.metrics.formulas.definitions import standard_error
from efficientbench.metrics.formulas.ratio import SIGNIFICANCE, Estimate, holm

FEWEST_SEEDS = 5
"""The fewest pairs of runs for a verdict."""
COMPARISONS = {
    "order": ("paced", "shuffled"),
    "mixture": ("shuffled", "random"),
    "difficulties": ("paced", "random_levels"),
    "reversal": ("reversed", "shuffled"),
}
"""Each effect's two orders, whose difference the effect is."""


@dataclass(frozen=True)
class LossCurve:
    """The held-out losses of one run during training."""

    seed: int
    """The run's seed, of initial adapters and order."""
    points: tuple[tuple[int, float], ...]
    """(loss tokens trained on, held-out loss in nats), ascending; runs of one seed share the held-out text."""

    def at(self, loss_tokens: float) -> float:
        """Return the loss after `loss_tokens` loss tokens, interpolated linearly between validations.

        Raises ConfigError: the run's first validation came later.
        """
        tokens, losses = zip(*self.points, strict=True)
        if loss_tokens < tokens[0]:
            raise ConfigError(
                f"the run of seed {self.seed} has its first held-out loss after {tokens[0]:,} loss tokens, and losses "
                f"are compared at {loss_tokens:,.0f}: validate more often (training.validate_every_steps)"
            )
        return float(np.interp(loss_tokens, tokens, losses))


@dataclass(frozen=True)
class Effect:
    """The difference of the held-out losses of two orders, over pairs of runs with the same seed."""

    loss_tokens: int
    """The loss tokens at which losses are compared: the most that all runs have."""
    seeds: tuple[int, ...]
    difference: float
    """The mean of first − second over the seeds, nats; below 0 the first order is better."""
    low: float
    """The lower end of Student's 95 % interval of the paired differences, nats."""
    high: float
    p_value: float
    """The probability of a difference at least as large if the orders do not differ."""

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if len(self.seeds) < FEWEST_SEEDS:
            return f"no verdict: {number_of(len(self.seeds), 'seed')}, {FEWEST_SEEDS} are needed"
        if self.p_value >= SIGNIFICANCE:
            return "no difference measurable"
        return f"{abs(self.difference):.4f} nats {'lower' if self.difference < 0 else 'higher'}"


def effect(first: Sequence[LossCurve], second: Sequence[LossCurve]) -> Effect:
    """Return the difference of the losses of two orders, paired by seed.

    Raises ConfigError: the sides have different seeds, fewer than two, or one twice; or a run was validated too late.
    """
    counts = [Counter(curve.seed for curve in side) for side in (first, second)]
    twice = sorted({seed for each in counts for seed, count in each.items() if count > 1})
    if twice:
        told = ", ".join(map(str, twice))
        raise ConfigError(f"seeds {told} ran more than once with one order: name a folder that has each run once")
    sides = [{curve.seed: curve for curve in side} for side in (first, second)]
    seeds = tuple(sorted(sides[0].keys() & sides[1].keys()))
    alone = sorted(sides[0].keys() ^ sides[1].keys())
    if alone:
        raise ConfigError(f"seeds {', '.join(map(str, alone))} ran on one side only: run the others, or leave them out")
    if len(seeds) < 2:
        raise ConfigError(f"{len(seeds)} pairs of runs: an interval takes 2, a verdict {FEWEST_SEEDS} (--repeat)")
    loss_tokens = min(curve.points[-1][0] for side in sides for curve in side.values())
    differences = [sides[0][seed].at(loss_tokens) - sides[1][seed].at(loss_tokens) for seed in seeds]
    mean = math.fsum(differences) / len(seeds)
    noise = Estimate((standard_error(differences) or 0.0) ** 2, len(seeds) - 1)
    return Effect(loss_tokens, seeds, mean, mean - noise.margin, mean + noise.margin, noise.p_value(mean))


def effects(curves: Mapping[str, Sequence[LossCurve]]) -> dict[str, Effect]:
    """Return the effects of order, mixture, difficulties and reversal for which both orders ran.

    The p values are corrected for the number of effects (Holm 1979): without any true effect, at most 5 % of such sets
    of comparisons claim one. The intervals are not corrected.

    Args:
        curves: the runs of each order, by its name in `curriculum.order`.
    """
    found = {
        name: effect(curves[first], curves[second])
        for name, (first, second) in COMPARISONS.items()
        if curves.get(first) and curves.get(second)
    }
    adjusted = holm({name: each.p_value for name, each in found.items()}, {})
    return {name: replace(each, p_value=adjusted[name]) for name, each in found.items()}
