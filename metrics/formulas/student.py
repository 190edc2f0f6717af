"""Student's t and Tukey's range: p values, quantiles and intervals of means of a few values; Wilson's of a share."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

from efficientbench.metrics.formulas.definitions import standard_deviation

Z_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


def mean_confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % Student-t interval of the mean of independent values; None for fewer than two."""
    deviation = standard_deviation(values)
    if deviation is None:
        return None
    mean = math.fsum(values) / len(values)
    margin = t_quantile_95(len(values) - 1) * deviation / math.sqrt(len(values))
    return mean - margin, mean + margin


def half_interval_95(standard_error: float | None, values: int | None) -> float | None:
    """Return half of a mean's 95 % Student-t interval; None if an argument is None, or for fewer than two values.

    Args:
        standard_error: the mean's standard error.
        values: number of independent values behind it: with 4, 1.96 standard errors would cover 85 %, not 95 %.
    """
    if standard_error is None or values is None or values < 2:
        return None
    return t_quantile_95(values - 1) * standard_error


def score_interval_95(mean: float, standard_error: float | None, items: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean score: Wilson's where each item is right or wrong, else Student's.

    Args:
        mean: the mean over the items.
        standard_error: the mean's, from the items' sample standard deviation; None for a single item.
        items: number of items, 1 or more.

    Returns:
        The interval; None where a single item says nothing of the spread.
    """
    # Scores between 0 and 1 have the largest variance that their mean allows where each of them is 0 or 1.
    if 0 <= mean <= 1 and math.isclose(
        (standard_error or 0.0) ** 2 * (items - 1), mean * (1 - mean), rel_tol=1e-6, abs_tol=1e-12
    ):
        return wilson_95(mean, items)
    margin = half_interval_95(standard_error, items)
    return None if margin is None else (mean - margin, mean + margin)


def wilson_95(share: float, items: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the share of right items (JASA 22, 1927); it has a width at 0 and 1 too."""
    surplus = Z_95**2 / items
    centre = (share + surplus / 2) / (1 + surplus)
    margin = Z_95 * math.sqrt((share * (1 - share) + surplus / 4) / items) / (1 + surplus)
    return max(centre - margin, 0.0), min(centre + margin, 1.0)


def t_quantile_95(degrees_of_freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t, for 1 degree of freedom or more."""
    return t_quantile(degrees_of_freedom, 0.05)


# A report asks for the same few quantiles thousands of times.
@functools.cache
def t_quantile(degrees_of_freedom: float, p_value: float) -> float:
    """Return the t above 0 with a two-sided p value, for 1 degree of freedom or more."""
    n, t, step = degrees_of_freedom, NormalDist().inv_cdf(1 - p_value / 2) - 0.01, 1.0
    scale = 2 * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(n * math.pi)
    # Newton's method from below, where it never overshoots: the p value is convex in t.
    while abs(step) > 1e-9:
        step = (t_p_value(t, n) - p_value) / (scale * (1 + t * t / n) ** (-(n + 1) / 2))
        t += step
    return t


def t_p_value(t: float, degrees_of_freedom: float) -> float:
    """Return the two-sided p value of Student's t: the chance of a t at least as far from 0.

    It is the incomplete beta function I_x(n / 2, 1 / 2) at x = n / (n + t²), for n degrees of freedom (Abramowitz and
    Stegun, 26.7.1). n need not be an integer.
    """
    n = degrees_of_freedom
    x = n / (n + t * t)
    # The continued fraction converges fast below this point, and beyond it for the complement.
    if x < (n / 2 + 1) / (n / 2 + 2.5):
        return _incomplete_beta(x, n / 2, 0.5)
    return 1 - _incomplete_beta(t * t / (n + t * t), 0.5, n / 2)


def range_p_value(t: float, rows: int, degrees_of_freedom: float) -> float:
    """Return the chance that any two of several equal rows differ by a t at least as far from 0.

    It is the tail of Tukey's studentized range q = √2 |t|, for 2 rows that of Student's t: with z the largest mean and
    s the estimated over the true standard deviation, P(Q < q) = E_s ∫ k φ(z) [Φ(z) − Φ(z − q s)]^(k − 1) dz for k rows
    (Tukey, 1953; Copenhaver and Holland, 1988). Both integrals are sums by the trapezoidal rule, true to 1e-5 for 2
    degrees or more.

    Args:
        t: a difference of two means over its standard error.
        rows: number of rows, 2 or more.
        degrees_of_freedom: of the estimate of the standard deviation that all rows share, 1 or more.
    """
    n = degrees_of_freedom
    # ln s has about this standard deviation, and a left tail that falls as s^n.
    step = 0.5 / math.sqrt(2 * n)
    lowest, highest = -max(24 / n, 5 / math.sqrt(n)), 5 / math.sqrt(n)
    logarithms = [place * step for place in range(math.floor(lowest / step), math.ceil(highest / step) + 1)]
    scale = math.log(2) + n / 2 * math.log(n / 2) - math.lgamma(n / 2)
    weights = [math.exp(scale + n * u - n / 2 * math.exp(2 * u)) * step for u in logarithms]
    widths = [math.sqrt(2) * abs(t) * math.exp(u) for u in logarithms]
    inside = math.fsum(
        weight * _within(width, rows) for weight, width in zip(weights, widths, strict=True) if weight > 1e-13
    )
    return min(max(1 - inside, 0.0), 1.0)


_STEP = 0.32
_PLACES = [place * _STEP for place in range(-25, 26)]
_PHI = [_STEP * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in _PLACES]
_BELOW = [math.erfc(-z / math.sqrt(2)) / 2 for z in _PLACES]


def _within(width: float, rows: int) -> float:
    """Return the chance that so many normal values, of standard deviation 1, lie within a width."""
    terms = (
        phi * (below - math.erfc((width - z) / math.sqrt(2)) / 2) ** (rows - 1)
        for z, phi, below in zip(_PLACES, _PHI, _BELOW, strict=True)
    )
    return rows * math.fsum(terms)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b) by its continued fraction (Abramowitz and Stegun, 26.5.8), evaluated as Lentz (1976) does."""
    if x == 0:
        return 0.0
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    fraction = numerator = 1.0
    inverse, factor, j = 0.0, 0.0, 0
    while abs(factor - 1) > 1e-14:
        j += 1
        k, odd = divmod(j, 2)
        if odd:
            term = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        else:
            term = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        inverse = 1 / (1 + term * inverse)
        numerator = 1 + term / numerator
        factor = numerator * inverse
        fraction *= factor
    return math.exp(scale) / a / fraction
