"""Measures the noise of a run's steps: confidence intervals that allow for autocorrelation, and drift.

Neighbouring steps are correlated (clocks, temperature, other processes), so that an interval for independent values is
too narrow. The block length of Politis & White (2004), as corrected by Patton, Politis & White (2009), says how far the
correlation reaches. The variance of a mean comes from the steps' cosine waves that are longer than such blocks, and
Student's t has as many degrees of freedom as there are waves (Lazarus, Lewis, Stock & Watson, "HAR Inference:
Recommendations for Practice", 2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.student import Z_95, t_quantile_95

LEAST_STEPS = 30
"""Fewer steps do not show how far the correlation reaches: there is no interval."""
LEAST_BLOCKS = 8
"""Fewer blocks of correlated steps do not show how much blocks differ: there is no interval."""
WAVE_BLOCKS = 5
"""Waves of this many blocks or longer give the variance: correlation weakens shorter ones."""
SURE_STEPS = 400
"""An interval from fewer steps is a lower bound of the true one: it does not show changes as slow as the run.

Simulated steps that are correlated over 60 steps, or of which one in fifty is slow, need this many for intervals that
hold the truth in 90 % of the runs (tests/benchmarks/interval_coverage.py).
"""

DRIFT_SIGNIFICANCE = 0.01
"""A flagged drift is at most this likely by chance."""
DRIFT_SIZE = 0.01
"""A flagged drift makes a step longer, or shorter, by at least this fraction."""
DRIFT_BLOCKS = 8
"""Fewer blocks cannot show a drift at that significance."""


@dataclass(frozen=True)
class StepTimeNoise:
    """95 % confidence intervals (low, high) of the mean and the median of a run's step times, s."""

    mean: tuple[float, float]
    median: tuple[float, float]
    block_steps: int
    """Number of steps over which neighbours are correlated; steps further apart count as independent."""


@dataclass(frozen=True)
class Drift:
    """The trend of step times over the window."""

    ratio: float
    """Step time at the window's end over step time at its beginning: 1.05 is 5 % slower at the end."""
    low: float
    """Lower end of the ratio's 95 % confidence interval."""
    high: float
    p_value: float
    """Two-sided chance of so clear a trend in steps without one."""

    @property
    def flagged(self) -> bool:
        """Whether the drift is both significant and large enough to matter."""
        return self.p_value < DRIFT_SIGNIFICANCE and abs(math.log(self.ratio)) >= math.log1p(DRIFT_SIZE)


def step_time_noise(step_times_s: Sequence[float]) -> StepTimeNoise:
    """Return the 95 % confidence intervals of the mean and the median of the step times, s.

    The mean's interval is Student's with the standard error of an autocorrelated series. The median's is Woodruff's
    (1952): the same interval of the share of steps below the median, as quantiles of the steps. Blocks are as long as
    mean or median need, and at least n^(1/3) steps, the rate at which they have to grow.

    Raises:
        MetricsError: too few steps, or too few blocks of them, for an interval that holds the truth.
    """
    times = np.asarray(step_times_s, dtype=np.float64)
    n = times.size
    if n < LEAST_STEPS:
        raise MetricsError(f"a 95 % interval needs {LEAST_STEPS} measured steps; this run has {n}")
    mean, median = float(times.mean()), float(np.median(times))
    # A step that equals the median counts half, so that the share below the median is one half.
    below = (times < median) + 0.5 * (times == median)
    block = max(block_length(times), block_length(below))
    if block * LEAST_BLOCKS > n:
        raise MetricsError(
            f"a 95 % interval needs {LEAST_BLOCKS} blocks of steps: neighbours are alike for {block} steps, so that "
            f"the {n} of this run are {n // block} blocks"
        )
    # Wave k is 2n/k steps long.
    waves = 2 * n // (WAVE_BLOCKS * block)
    margin, share_margin = (t_quantile_95(waves) * _standard_error(each, waves) for each in (times, below))
    share_low, share_high = np.clip([0.5 - share_margin, 0.5 + share_margin], 0, 1)
    low, high = np.quantile(times, [share_low, share_high])
    return StepTimeNoise((mean - margin, mean + margin), (float(low), float(high)), block)


def block_length(values: np.ndarray) -> int:
    """Return the circular block bootstrap's best block length for an autocorrelated series' mean, in values.

    (2 G² / D)^(1/3) n^(1/3), where D = 4/3 g(0)², g(0) and G are sums of autocovariances, weighted by a flat-top
    window as wide as the autocorrelation reaches. Source: Politis & White (2004), corrected 2009. At least n^(1/3)
    and at most a third of the series.
    """
    n = values.size
    longest = max(n // 3, 1)
    least = min(math.ceil(n ** (1 / 3)), longest)
    covariances = _autocovariances(values, min(n - 1, math.ceil(math.sqrt(n)) + _insignificant_lags(n)))
    # Equal values have a variance of rounding errors alone, whose correlations mean nothing.
    if covariances[0] <= 1e-12 * float(np.mean(values)) ** 2:
        return least
    reach = _reach(covariances / covariances[0], n)
    lags = np.arange(1, min(2 * reach, covariances.size - 1) + 1)
    window = np.clip(2 * (1 - lags / (2 * reach)), 0, 1)
    spectrum = covariances[0] + 2 * float(np.sum(window * covariances[lags]))
    slope = 2 * float(np.sum(window * lags * covariances[lags]))
    if spectrum <= 0:
        return least
    best = (2 * slope**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * n ** (1 / 3)
    return int(min(max(math.ceil(best), least), longest))


def drift(step_times_s: Sequence[float]) -> Drift:
    """Return the trend of step times over the window: Theil and Sen's slope with Kendall's test of its significance.

    Both use the medians of blocks of steps, which outliers do not move. The block length is the bootstrap's for the
    same steps without their trend, so that the medians are nearly independent, as Kendall's test requires. The slope is
    that of the times' logarithms, so that end over beginning is a ratio above 0 however steep the trend is. Its
    interval is Sen's, from the slopes of all pairs. Sources: Sen (1968), Mann (1945).

    Raises:
        MetricsError: too few blocks to show a drift.
    """
    times = np.asarray(step_times_s, dtype=np.float64)
    if times.size < DRIFT_BLOCKS:
        raise MetricsError(f"a drift needs {DRIFT_BLOCKS} steps, and {times.size} were measured")
    logs = np.log(times)
    block = block_length(logs - np.linspace(0, _theil_sen(_block_medians(logs, times.size)).rise, times.size))
    medians = _block_medians(logs, times.size // block)
    if medians.size < DRIFT_BLOCKS:
        raise MetricsError(
            f"a drift needs {DRIFT_BLOCKS} blocks of steps: neighbours are alike for {block} steps, and {times.size} "
            "were measured"
        )
    trend = _theil_sen(medians)
    # The trend spans the blocks' middles: extrapolate it to both ends of the window.
    whole = medians.size / (medians.size - 1)
    ratio, low, high = (math.exp(whole * rise) for rise in (trend.rise, trend.low, trend.high))
    return Drift(ratio, low, high, _kendall_p_value(medians, trend.score))


def _block_medians(times: np.ndarray, blocks: int) -> np.ndarray:
    # More than 500 blocks would make millions of pairs, and the trend no clearer.
    return np.array([np.median(part) for part in np.array_split(times, min(blocks, 500))])


class _Trend(NamedTuple):
    """The slope of a series, as the rise from its first to its last value."""

    rise: float
    low: float
    """Lower end of the rise's 95 % confidence interval."""
    high: float
    score: float
    """Kendall's score: rising pairs less falling pairs."""


def _theil_sen(values: np.ndarray) -> _Trend:
    """Return the median slope between two values, with Sen's interval from the ranks of all slopes."""
    later, earlier = np.tril_indices(values.size, -1)
    rises = values[later] - values[earlier]
    slopes = np.sort(rises / (later - earlier)) * (values.size - 1)
    margin = Z_95 * math.sqrt(_kendall_variance(values))
    low = max(round((slopes.size - margin) / 2) - 1, 0)
    high = min(round((slopes.size + margin) / 2), slopes.size - 1)
    return _Trend(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), float(np.sum(np.sign(rises))))


def _autocovariances(values: np.ndarray, lags: int) -> np.ndarray:
    """Return the autocovariances [lags + 1], sums divided by n."""
    centred = values - values.mean()
    # By Fourier transforms, padded to twice the length: else the end of the series would correlate with its beginning.
    size = 1 << (2 * values.size - 1).bit_length()
    power = np.abs(np.fft.rfft(centred, size)) ** 2
    return np.fft.irfft(power, size)[: lags + 1] / values.size


def _insignificant_lags(n: int) -> int:
    return max(5, math.ceil(math.sqrt(math.log10(n))))


def _reach(correlations: np.ndarray, n: int) -> int:
    """Return the lag before the first row of insignificant lags, at least 1; else the last significant lag."""
    row = _insignificant_lags(n)
    significant = np.abs(correlations[1:]) >= 2 * math.sqrt(math.log10(n) / n)
    for lag in range(significant.size - row + 1):
        if not significant[lag : lag + row].any():
            return max(lag, 1)
    found = np.flatnonzero(significant)
    return int(found[-1]) + 1 if found.size else 1


def _standard_error(values: np.ndarray, waves: int) -> float:
    """Return the standard error of an autocorrelated series' mean from its longest cosine waves, of equal weights.

    The square of wave k's amplitude, √(2/n) Σ x(t) cos(πk (t + 1/2) / n), estimates n times the variance of the mean
    where the wave is longer than the series' correlation reaches.
    """
    n = values.size
    # The cosine transform by the Fourier transform of the series and its mirror image.
    spectrum = np.fft.rfft(np.concatenate([values, values[::-1]]) - values.mean())[1 : waves + 1]
    phases = np.exp(-0.5j * np.pi / n * np.arange(1, waves + 1))
    amplitudes = math.sqrt(2 / n) * np.real(phases * spectrum) / 2
    return math.sqrt(float(np.mean(amplitudes**2)) / n)


def _kendall_variance(values: np.ndarray) -> float:
    """Return the variance of Kendall's score of values without a trend, corrected for ties."""
    n = values.size
    ties = np.unique(values, return_counts=True)[1]
    return float(n * (n - 1) * (2 * n + 5) - np.sum(ties * (ties - 1) * (2 * ties + 5))) / 18


def _kendall_p_value(values: np.ndarray, score: float) -> float:
    """Return the two-sided p value by the normal approximation, corrected for continuity and ties (Kendall 1975)."""
    variance = _kendall_variance(values)
    if score == 0 or variance == 0:
        return 1.0
    return math.erfc((abs(score) - 1) / math.sqrt(2 * variance))
