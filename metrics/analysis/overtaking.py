"""Two lives, each of a training and of served tokens: from how many on each costs less, beyond the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.metrics.formulas.definitions import standard_deviation
from efficientbench.metrics.formulas.ratio import SIGNIFICANCE, Estimate


@dataclass(frozen=True)
class Amount:
    """A cost, with its noise where that is known."""

    value: float
    noise: Estimate | None = None
    """The cost's variance; None if not known."""

    def __add__(self, other: Amount) -> Amount:
        noise = None if self.noise is None or other.noise is None else self.noise + other.noise
        return Amount(self.value + other.value, noise)

    def times(self, factor: float) -> Amount:
        """Return the cost times a factor."""
        noise = self.noise and Estimate(self.noise.variance * factor**2, self.noise.degrees)
        return Amount(self.value * factor, noise)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval by Student's t; None if the noise is not known."""
        if self.noise is None:
            return None
        return self.value - self.noise.margin, self.value + self.noise.margin

    @classmethod
    def mean(cls, values: Sequence[float]) -> Amount:
        """Return the mean of independent values, with their noise where these show it: two or more, not all equal."""
        deviation = standard_deviation(values) or None
        noise = None if deviation is None else Estimate(deviation**2 / len(values), len(values) - 1)
        return cls(math.fsum(values) / len(values), noise)


@dataclass(frozen=True)
class Life:
    """The costs of one model, in one unit."""

    training: Amount
    token: Amount
    """Cost of one served token."""

    def after(self, served_tokens: float) -> Amount:
        """Return the cost of training and of that many served tokens."""
        return self.training + self.token.times(served_tokens)


@dataclass(frozen=True)
class Overtaking:
    """Which of two lives costs less, by the figures and by their intervals."""

    tokens: float | None
    """Served tokens at which the figures meet; None if they do not."""
    before: int | None
    """The model, 0 or 1, that costs less with fewer served tokens, by the figures; None if both cost the same."""
    after: int | None
    """The model that costs less with more."""
    low: float
    """Up to so many served tokens `before` costs less beyond the noise: 0 none, infinite any number."""
    high: float
    """From so many on `after` costs less beyond the noise: infinite none, 0 any number."""

    @property
    def always(self) -> bool:
        """Whether one model costs less at any number of served tokens, beyond the noise."""
        return math.isinf(self.low) or self.high == 0


def overtaking(first: Life, second: Life, differences: int = 2) -> Overtaking:
    """Return from how many served tokens on each model costs less.

    The figures meet at the difference in training over the difference in one served token. The interval is Fieller's
    (1954): all quotients that the noise of both differences allows. It has no upper end where serving may cost the
    same, and no lower one where training may. Nothing is told unless the clearest difference remains significant by
    Bonferroni.

    Args:
        first: the costs of model 0.
        second: the costs of model 1.
        differences: how many differences are looked at.
    """
    dearer = _difference(second.training, first.training)
    saved = _difference(first.token, second.token)
    if dearer.value == 0 and saved.value == 0:
        return Overtaking(None, None, None, 0.0, math.inf)
    before = 0 if (dearer.value or -saved.value) > 0 else 1
    after = 1 if (saved.value or -dearer.value) > 0 else 0
    tokens = None if before == after else dearer.value / saved.value
    low, high = _ends(dearer, saved, differences)
    return Overtaking(tokens, before, after, low, high)


def _ends(dearer: Amount, saved: Amount, differences: int) -> tuple[float, float]:
    """Return Fieller's ends; 0 and infinity where nothing is told."""
    if dearer.noise is None or saved.noise is None:
        return 0.0, math.inf
    if min(each.noise.p_value(each.value) for each in (dearer, saved) if each.noise) * differences >= SIGNIFICANCE:
        return 0.0, math.inf
    # Fieller's t · standard error is the margin here, since each difference has its own degrees of freedom.
    a, b = dearer.value**2 - dearer.noise.margin**2, saved.value**2 - saved.noise.margin**2
    middle = dearer.value * saved.value
    if a > 0 and b > 0 and middle < 0:
        return math.inf, 0.0
    root = math.sqrt(max(middle**2 - a * b, 0.0))
    low = (a / (middle + root) if middle + root > 0 else math.inf) if a > 0 else 0.0
    return low, (middle + root) / b if b > 0 else math.inf


def _difference(one: Amount, other: Amount) -> Amount:
    return one + other.times(-1)
