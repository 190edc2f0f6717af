"""The formulas, against integrals and statistics known in closed form or computed another way."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas import definitions
from efficientbench.metrics.formulas.student import mean_confidence_interval


def irregular(begin_s: float, end_s: float, count: int) -> list[float]:
    """`count` increasing time stamps at random distances."""
    generator = random.Random(7)
    return sorted({begin_s, end_s, *(generator.uniform(begin_s, end_s) for _ in range(count))})


def test_integral_of_irregular_samples_is_exact_for_a_line() -> None:
    times = irregular(0, 50, 40)
    values = [3 + 2 * t for t in times]
    # ∫ (3 + 2 t) dt over [10, 20] = 30 + 300
    assert definitions.integrate(times, values, [(10, 20)]) == pytest.approx(330, rel=1e-12)


def test_integral_of_a_curve_is_exact_to_a_thousandth() -> None:
    times = irregular(0, 20, 2000)
    values = [200 + 100 * math.sin(t) for t in times]
    exact = 200 * 10 + 100 * (math.cos(5) - math.cos(15))
    assert definitions.integrate(times, values, [(5, 15)]) == pytest.approx(exact, rel=1e-3)


def test_samples_outside_windows_and_in_pauses_do_not_count() -> None:
    times = [0, 9.9, 10, 20, 20.1, 29.9, 30, 40, 40.1, 99]
    values = [1e6, 1e6, 5, 5, 1e6, 1e6, 7, 7, 1e6, 1e6]
    windows = [(10, 20), (30, 40)]
    found = definitions.integrate(times, values, windows), definitions.time_average(times, values, windows)
    assert found == pytest.approx((120, 6))


def test_the_time_average_of_irregular_samples_differs_from_their_plain_mean() -> None:
    # Nine samples crowd the first second of ten, in which power is 900 W; then it is 100 W.
    times = [*np.linspace(0, 1, 9), 1.000001, 10]
    values = [900.0] * 9 + [100.0, 100.0]
    average = definitions.time_average(times, values, [(0, 10)])
    assert average == pytest.approx(180, rel=1e-4)
    assert average != pytest.approx(float(np.mean(values)), rel=0.5)


def test_time_before_the_first_and_after_the_last_sample_is_not_covered() -> None:
    assert definitions.covered_s([12, 15, 18], [(10, 20)]) == 6
    assert definitions.time_average([12, 18], [4, 4], [(10, 20)]) == 4
    assert definitions.covered_s([], [(10, 20)]) == 0
    assert definitions.time_average([1, 2], [4, 4], [(10, 20)]) is None


def test_time_stamps_that_run_backwards_are_refused() -> None:
    with pytest.raises(MetricsError, match="before its predecessor"):
        definitions.integrate([0, 2, 1], [1, 1, 1], [(0, 2)])
    with pytest.raises(MetricsError, match="2 time stamps for 1 samples"):
        definitions.integrate([0, 2], [1], [(0, 2)])


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.01, 3), min_size=3, max_size=30),
    st.lists(st.floats(-5, 5), min_size=31, max_size=31),
    st.floats(0.05, 0.95),
)
def test_cutting_a_window_in_two_changes_nothing(gaps: list[float], values: list[float], where: float) -> None:
    times = [0.0, *np.cumsum(gaps)]
    signal, end = values[: len(times)], times[-1]
    whole = definitions.integrate(times, signal, [(0, end)])
    parts = definitions.integrate(times, signal, [(0, where * end), (where * end, end)])
    assert parts == pytest.approx(whole, abs=1e-9)
    heights = np.asarray(signal)
    assert whole == pytest.approx(float(((heights[1:] + heights[:-1]) / 2 * np.diff(times)).sum()), abs=1e-9)


def test_the_five_metrics_have_their_units() -> None:
    times, windows = [0, 10], [(2.0, 8.0)]
    assert definitions.average_memory_utilization(times, [40e9, 40e9], windows) == pytest.approx(40)
    assert definitions.peak_compute_utilization(times, [0.5, 0.5], windows) == pytest.approx(0.5)
    assert definitions.peak_compute_utilization(times, [0.5, 0.5], windows, utilization_peak=0.8) == pytest.approx(
        0.625
    )
    assert definitions.average_latency([0.1, 0.3]) == pytest.approx(0.2)
    assert definitions.token_throughput(tokens=6000, parameters=1e3, time_s=2) == pytest.approx(3)
    assert definitions.average_energy_consumption(energy_j=1200, window_s=6) == pytest.approx(200)
    assert definitions.energy_per_token(energy_j=1200, tokens=400) == pytest.approx(3)


def test_flops_utilization_of_a_device_at_half_its_peak() -> None:
    assert definitions.flops_utilization(flops=8e15, time_s=2, devices=4, peak_flops=2e15) == pytest.approx(0.5)
    with pytest.raises(MetricsError, match="peak_flops must be above zero"):
        definitions.flops_utilization(1, 1, 1, 0)


def test_the_compression_rate_is_the_ratio_of_sizes_times_the_quality_kept() -> None:
    assert definitions.model_compression_rate(1000, 250, 0.9) == pytest.approx(3.6)


def test_perplexity_and_bits_per_byte_match_closed_forms() -> None:
    assert definitions.perplexity(math.log(17)) == pytest.approx(17)
    # A uniform guess among 256 byte tokens takes 8 bits a byte, whatever the number of bytes.
    assert definitions.bits_per_byte(math.log(256), tokens=1000, utf8_bytes=1000) == pytest.approx(8)
    # Tokens of four bytes each: the same loss is spread over four times the bytes.
    assert definitions.bits_per_byte(math.log(256), tokens=1000, utf8_bytes=4000) == pytest.approx(2)
    with pytest.raises(MetricsError, match="exceeds the largest float"):
        definitions.perplexity(1000)


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_match_numpy(values: list[float], percent: float) -> None:
    assert definitions.percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_all_percentiles_at_once_match_numpy() -> None:
    values = irregular(0, 50, 333)[::-1]
    assert definitions.percentiles(values) == pytest.approx(list(np.percentile(values, range(101))), rel=1e-12)


def test_spread_needs_two_values() -> None:
    assert definitions.standard_deviation([1.0]) is None
    assert mean_confidence_interval([1.0]) is None
    assert definitions.standard_deviation([1, 2, 4]) == pytest.approx(float(np.std([1, 2, 4], ddof=1)))
    with pytest.raises(MetricsError, match="no step"):
        definitions.average_latency([])
    with pytest.raises(MetricsError, match="no value"):
        definitions.percentile([], 50)


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 31, 32, 61, 500])
def test_the_confidence_interval_holds_95_percent_of_students_t(count: int) -> None:
    values = [0.0, 1.0] * (count // 2) + [0.5] * (count % 2)
    low, high = mean_confidence_interval(values) or (0.0, 0.0)
    deviation = definitions.standard_deviation(values) or 0.0
    quantile = (high - low) / 2 / (deviation / math.sqrt(count))
    freedom = count - 1
    norm = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    # Student's density over [0, quantile] by Simpson's rule.
    grid = np.linspace(0, quantile, 20001)
    density = norm * (1 + grid**2 / freedom) ** (-(freedom + 1) / 2)
    weights = np.ones_like(grid)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    mass = 2 * float((weights * density).sum()) * (grid[1] - grid[0]) / 3
    assert mass == pytest.approx(0.95, abs=2e-5)


def test_load_imbalance_is_the_busiest_over_the_mean() -> None:
    assert definitions.load_imbalance([[5, 5, 5, 5], [20, 0, 0, 0], [6, 4, 5, 5]]) == (1, 4, 1.2)
    assert definitions.load_imbalance([]) == ()
    with pytest.raises(MetricsError, match="tokens of a layer's experts must be above zero"):
        definitions.load_imbalance([[0, 0]])


def test_standard_error_of_a_weighted_mean() -> None:
    # Equal weights: that of the plain mean.
    values = [1.0, 2.0, 4.0, 4.5]
    assert definitions.ratio_standard_error(values, [7.0] * 4) == pytest.approx(definitions.standard_error(values))
    # Documents of very different lengths, against the means of many samples of them.
    random = np.random.default_rng(0)
    lengths = random.integers(5, 400, (4000, 60))
    losses = 4 + random.normal(0, 0.5, lengths.shape) + 100 / (lengths + 50)
    means = (losses * lengths).sum(axis=1) / lengths.sum(axis=1)
    found = [definitions.ratio_standard_error(*pair) for pair in zip(losses[:200], lengths[:200], strict=True)]
    assert np.mean(found) == pytest.approx(means.std(), rel=0.03)
    assert definitions.ratio_standard_error([3.0], [10]) is None
