"""Two models' costs of training and of a served token, and from how many served tokens one overtakes the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.metrics.definitions import standard_deviation
from efficientbench.metrics.ratio import Estimate


@dataclass(frozen=True)
class Amount:
    """A cost, and the noise that is known of it."""

    value: float
    noise: Estimate | None = None
    """Its variance; None: not known."""

    def __add__(self, other: Amount) -> Amount:
        noise = None if self.noise is None or other.noise is None else self.noise + other.noise
        return Amount(self.value + other.value, noise)

    def times(self, factor: float) -> Amount:
        """Return so many times the cost."""
        noise = self.noise and Estimate(self.noise.variance * factor**2, self.noise.degrees)
        return Amount(self.value * factor, noise)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval by Student's t; None: not known."""
        if self.noise is None:
            return None
        return self.value - self.noise.margin, self.value + self.noise.margin

    @classmethod
    def mean(cls, values: Sequence[float]) -> Amount:
        """Return the mean of independent values, with their noise where there are two or more."""
        deviation = standard_deviation(values)
        noise = None if deviation is None else Estimate(deviation**2 / len(values), len(values) - 1)
        return cls(math.fsum(values) / len(values), noise)


@dataclass(frozen=True)
class Life:
    """What one model takes, in one unit."""

    training: Amount
    token: Amount
    """Of one served token."""

    def times(self, factor: float) -> Life:
        """Return the life in a unit of which it takes so many times as many."""
        return Life(self.training.times(factor), self.token.times(factor))

    def after(self, served_tokens: float) -> Amount:
        """Return the cost of the training and of so many served tokens."""
        return self.training + self.token.times(served_tokens)


@dataclass(frozen=True)
class Overtaking:
    """Where the costs of two lives meet."""

    tokens: float | None
    """Served tokens from which the other model costs less; None: the same costs less, or they cost the same, always."""
    low: float | None
    """Lower end of their 95 % interval; None, as `high`: it is not known, or `tokens` is None."""
    high: float | None
    """Infinite where the difference in serving is within its noise."""
    before: int | None
    """Which model costs less with fewer served tokens: 0 or 1; None: both cost the same."""


def overtaking(first: Life, second: Life) -> Overtaking:
    """Return from how many served tokens the model that costs more to train costs less.

    The number is the quotient of two differences, training's over a served token's. Its interval is Fieller's (1954),
    of all quotients that both differences allow: it has no upper end where serving may cost the same.
    """
    dearer = _difference(second.training, first.training)
    saved = _difference(first.token, second.token)
    if dearer.value == 0 or saved.value == 0 or dearer.value * saved.value < 0:
        least = [dearer.value, -saved.value]
        decided = next((value for value in least if value), None)
        return Overtaking(None, None, None, None if decided is None else 0 if decided > 0 else 1)
    before = 0 if dearer.value > 0 else 1
    tokens = dearer.value / saved.value
    if dearer.noise is None or saved.noise is None:
        return Overtaking(tokens, None, None, before)
    # Each with its own degrees of freedom: the margins stand for t · standard error.
    a, b = dearer.value**2 - dearer.noise.margin**2, saved.value**2 - saved.noise.margin**2
    middle = dearer.value * saved.value
    root = math.sqrt(max(middle**2 - a * b, 0.0))
    if b <= 0:
        low = a / (middle + root) if a > 0 else 0.0
        return Overtaking(tokens, low, math.inf, before)
    return Overtaking(tokens, max((middle - root) / b, 0.0), (middle + root) / b, before)


def _difference(one: Amount, other: Amount) -> Amount:
    return one + other.times(-1)
