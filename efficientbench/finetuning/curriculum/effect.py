"""The effect of a curriculum: held-out losses of runs with the same seeds, compared at equal loss tokens.

`paced − shuffled` is the effect of the order, `shuffled − random` that of the mixture, `paced − random_levels` that of
the difficulties, `reversed − shuffled` that of the opposite order. Easy samples are mostly short, so that runs of equal
steps have not learned from as many tokens.
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
"""Fewer pairs of runs give no verdict."""
COMPARISONS = {
    "order": ("paced", "shuffled"),
    "mixture": ("shuffled", "random"),
    "difficulties": ("paced", "random_levels"),
    "reversal": ("reversed", "shuffled"),
}
"""Effect → the two orders whose difference it is."""


@dataclass(frozen=True)
class LossCurve:
    """Held-out loss of one run as it trains."""

    seed: int
    """Of the run: initial adapters and order."""
    points: tuple[tuple[int, float], ...]
    """(loss tokens trained on, held-out loss in nats), ascending; runs of one seed have one held-out text."""

    def at(self, loss_tokens: float) -> float:
        """Return the loss after so many loss tokens, on a straight line between validations.

        Raises ConfigError: the run was first validated later.
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
    """How much lower or higher a held-out loss is, over pairs of runs of the same seed."""

    loss_tokens: int
    """At which the losses are compared: the most that all runs have."""
    seeds: tuple[int, ...]
    difference: float
    """Mean over the seeds of first − second, nats: below 0, the first is better."""
    low: float
    """Lower end of the 95 % interval, Student's, of paired differences."""
    high: float
    p_value: float
    """Chance of so large a difference where there is none."""

    @property
    def verdict(self) -> str:
        """The difference in words."""
        if len(self.seeds) < FEWEST_SEEDS:
            return f"no verdict: {number_of(len(self.seeds), 'seed')}, {FEWEST_SEEDS} are needed"
        if self.p_value >= SIGNIFICANCE:
            return "no difference measurable"
        return f"{abs(self.difference):.4f} nats {'lower' if self.difference < 0 else 'higher'}"


def effect(first: Sequence[LossCurve], second: Sequence[LossCurve]) -> Effect:
    """Return the difference of two orders' losses, paired by seed.

    Raises ConfigError: the sides have not the same seeds, or a single one, or one twice; or a run has no loss so early.
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
    """Return the effects of order, mixture, difficulties and reversal, as far as both sides ran.

    Their p values are corrected for their number (Holm 1979): where nothing has an effect, 95 % of comparisons claim
    none at all. Intervals stay those of single differences.

    Args:
        curves: order, as `curriculum.order` names it → its runs.
    """
    found = {
        name: effect(curves[first], curves[second])
        for name, (first, second) in COMPARISONS.items()
        if curves.get(first) and curves.get(second)
    }
    adjusted = holm({name: each.p_value for name, each in found.items()}, {})
    return {name: replace(each, p_value=adjusted[name]) for name, each in found.items()}
