"""The noise of steps against closed forms, scipy, arch, and simulations whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from arch.bootstrap import optimal_block_length
from scipy import fft, stats

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas.statistics import block_length, drift, step_time_noise
from efficientbench.metrics.formulas.student import mean_confidence_interval, t_quantile_95


def autoregressive(series: int, n: int, correlation: float, seed: int = 7) -> np.ndarray:
    """[series, n] stationary AR(1) around 100 with unit noise: x(t) = correlation · x(t - 1) + e(t)."""
    noise = np.random.default_rng(seed).standard_normal((series, n))
    values = np.empty_like(noise)
    values[:, 0] = noise[:, 0] / math.sqrt(1 - correlation**2)
    for t in range(1, n):
        values[:, t] = correlation * values[:, t - 1] + noise[:, t]
    return values + 100


@pytest.mark.parametrize("correlation", [0.0, 0.7, 0.97])
def test_intervals_cover_the_truth_in_95_percent(correlation: float) -> None:
    found = [step_time_noise(values) for values in autoregressive(200, 500, correlation)]
    # 200 series: two standard errors of a share of 95 % are 3 %, and waves of finite length cost up to 3 %.
    for name in ("mean", "median"):
        intervals = [getattr(noise, name) for noise in found]
        assert 0.89 <= np.mean([low <= 100 <= high for low, high in intervals]) <= 0.995, name


def test_intervals_that_assume_independent_steps_cover_too_little() -> None:
    series = autoregressive(200, 500, 0.7)
    naive = [mean_confidence_interval(values.tolist()) or (0, 0) for values in series]
    assert np.mean([low <= 100 <= high for low, high in naive]) < 0.7


def test_the_interval_of_correlated_steps_has_the_known_width() -> None:
    # The variance of an AR(1)'s mean is that of independent values times (1 + ρ) / (1 - ρ), for many values.
    (values,) = autoregressive(1, 50_000, 0.5)
    noise = step_time_noise(values)
    low, high = mean_confidence_interval(values.tolist()) or (0, 0)
    assert (noise.mean[1] - noise.mean[0]) / (high - low) == pytest.approx(math.sqrt(3), rel=0.1)
    assert noise.median[0] < np.median(values) < noise.median[1]


def test_the_block_length_matches_politis_and_white() -> None:
    # Of an AR(1): 2 G² / D with G = 2 ρ / (1 - ρ)² / … has the closed form (6 ρ² / (1 - ρ²)²)^(1/3) n^(1/3).
    n, correlation = 20_000, 0.8
    expected = (6 * correlation**2 / (1 - correlation**2) ** 2) ** (1 / 3) * n ** (1 / 3)
    found = [block_length(values) for values in autoregressive(20, n, correlation)]
    assert np.mean(found) == pytest.approx(expected, rel=0.15)
    (independent,) = autoregressive(1, 1000, 0.0)
    assert block_length(independent) <= 14


@pytest.mark.parametrize("times", [[2.0] * 40, [0.1] * 99 + [0.3]])
def test_equal_steps_have_no_spread(times: list[float]) -> None:
    noise = step_time_noise(times)
    assert noise.mean[0] <= np.mean(times) <= noise.mean[1]
    assert noise.median == (times[0], times[0])


def test_the_same_steps_give_the_same_interval() -> None:
    (values,) = autoregressive(1, 300, 0.3)
    assert step_time_noise(values) == step_time_noise(values.tolist())


def test_too_few_steps_or_blocks_have_no_interval() -> None:
    (values,) = autoregressive(1, 40, 0.0)
    assert step_time_noise(values).mean[0] < values.mean()
    with pytest.raises(MetricsError, match="needs 30 measured steps; this run has 29"):
        step_time_noise(values[:29])
    # Two levels of a clock, 40 steps each.
    with pytest.raises(MetricsError, match=r"8 blocks of steps: neighbours are alike for \d+ steps, so that the 80 "):
        step_time_noise([*(1 + values / 1e4), *(1.1 + values / 1e4)])


def test_quantiles_block_lengths_and_margins_match_the_oracles() -> None:
    """This project computes quantiles, block lengths and the standard error itself."""
    for degrees in (1, 8, 30, 31, 100, 1000, 100_000):
        assert t_quantile_95(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=5e-5)
    for correlation in (0.9, 0.5, 0.0):
        (values,) = autoregressive(1, 400, correlation)
        expected = float(optimal_block_length(values)["circular"].iloc[0])
        assert block_length(values) == pytest.approx(max(expected, 400 ** (1 / 3)), rel=0.1, abs=1)
    noise = step_time_noise(values)
    amplitudes = fft.dct(values - values.mean(), norm="ortho")[1 : 2 * 400 // (5 * noise.block_steps) + 1]
    margin = stats.t.ppf(0.975, amplitudes.size) * math.sqrt(np.mean(amplitudes**2) / 400)
    assert noise.mean == pytest.approx((values.mean() - margin, values.mean() + margin), rel=1e-6)


def test_a_drift_is_measured_and_flagged() -> None:
    (noise,) = autoregressive(1, 1000, 0.5)
    times = noise * np.linspace(1, 1.06, 1000)
    times[::50] *= 3
    found = drift(times)
    assert found.ratio == pytest.approx(1.06, abs=0.01)
    assert found.low < found.ratio < found.high
    assert (found.p_value < 1e-6, found.flagged) == (True, True)


def test_a_drift_is_rarely_claimed_where_there_is_none() -> None:
    series = autoregressive(150, 400, 0.7)
    found = [drift(values) for values in series]
    assert np.mean([each.p_value < 0.05 for each in found]) < 0.12
    assert not any(each.flagged for each in found if abs(each.ratio - 1) < 0.0099)
    assert np.mean([each.low <= 1 <= each.high for each in found]) > 0.88


def test_a_steep_drift_is_a_ratio() -> None:
    # Steps that become ten times as short: the change over the median would be below -100 %.
    times = np.geomspace(1, 0.1, 400) * np.exp(0.05 * np.random.default_rng(3).standard_normal(400))
    found = drift(times)
    assert found.ratio == pytest.approx(0.1, rel=0.05)
    assert 0 < found.low < 0.1 < found.high < 0.2
    slower = drift(times[::-1])
    assert slower.ratio == pytest.approx(1 / found.ratio, rel=0.01)


def test_the_interval_of_a_drift_matches_sens_slope() -> None:
    # Few steps that alternate: blocks of one step, whose medians are the steps.
    (noise,) = autoregressive(1, 2000, 0.0)
    found = drift(noise)
    logs = np.log(noise)
    medians = [np.median(part) for part in np.array_split(logs, min(2000 // block_length(logs), 500))]
    slope, _, low, high = stats.theilslopes(medians, alpha=0.95)
    expected = np.exp(np.array([slope, low, high]) * len(medians))
    assert (found.ratio, found.low, found.high) == pytest.approx(tuple(expected), rel=1e-9)


def test_kendalls_p_value_matches_the_textbook() -> None:
    # Blocks of 4 of 40 steps give 10 medians: S = 45 of 45, variance 125, z = 44 / √125 = 3.935.
    assert drift([math.exp(i / 100) for i in range(40)]).p_value == pytest.approx(math.erfc(44 / math.sqrt(250)))
    assert drift([1.0] * 40).p_value == 1


def test_a_drift_of_too_few_steps_is_refused() -> None:
    with pytest.raises(MetricsError, match="a drift needs 8 steps, and 7 were measured"):
        drift([1.0] * 7)
    with pytest.raises(MetricsError, match="8 blocks of steps: neighbours are alike for 6 steps, and 20 were"):
        drift([1.0, 1.1] * 10)
