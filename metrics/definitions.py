"""Every metric as a pure function of numbers: no device, no clock, no torch.

The five efficiency metrics follow EfficientLLM (arXiv 2505.13840, equations 1-8), so that a row can be laid beside
that paper's tables. Symbols used below:

    T  length of the measured window, s        N  optimizer steps in it
    K  tokens trained on in it, all ranks      P  parameters        D  devices

Warm-up, evaluation, checkpoints and set-up lie outside the window and take no part in any figure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from efficientbench.metrics.errors import MetricsError

Windows = Sequence[tuple[float, float]]
"""Measured intervals as (begin_s, end_s) pairs on one monotonic clock, in order and apart."""

BYTES_PER_GB = 1e9

FORMULAS = "efficientllm-2505.13840/1"
"""The formula id of a record: whose definitions, and the edition of this file, counted up when a figure changes its
meaning. Figures of different ids are not laid side by side."""

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T_95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
_Z_95 = 1.959964


def window_length_s(windows: Windows) -> float:
    """T: the summed length of the measured intervals, s. Pauses between them do not count."""
    return sum(end - begin for begin, end in windows)


def integrate(times_s: Sequence[float], values: Sequence[float], windows: Windows) -> float:
    """The trapezoidal integral of an irregularly sampled signal over the windows.

    The signal runs straight from sample to sample by their own time stamps; a window's edge between two samples
    cuts the line there. Time before the first or after the last sample is not covered, never guessed.

    Args:
        times_s: when each sample was taken, s, increasing. [n]
        values: what each sample said, in any unit u. [n]
        windows: the intervals to integrate over.

    Returns:
        The integral over what the samples cover of the windows, u · s.

    Raises:
        MetricsError: the lengths differ or the time stamps run backwards.
    """
    if len(times_s) != len(values):
        raise MetricsError(f"{len(times_s)} time stamps for {len(values)} samples: each sample needs one")
    integral = 0.0
    for begin, end in windows:
        first = max(bisect_right(times_s, begin) - 1, 0)
        for i in range(first, len(times_s) - 1):
            left, right = times_s[i], times_s[i + 1]
            if right < left:
                raise MetricsError(f"sample {i + 1} is stamped {right} s, before its predecessor's {left} s")
            if left >= end:
                break
            low, high = max(left, begin), min(right, end)
            if high > low:
                slope = (values[i + 1] - values[i]) / (right - left)
                middle = values[i] + slope * ((low + high) / 2 - left)
                integral += middle * (high - low)
    return integral


def covered_s(times_s: Sequence[float], windows: Windows) -> float:
    """The time inside the windows that lies between the first and the last sample, s."""
    if not times_s:
        return 0.0
    return sum(max(min(times_s[-1], end) - max(times_s[0], begin), 0.0) for begin, end in windows)


def time_average(times_s: Sequence[float], values: Sequence[float], windows: Windows) -> float | None:
    """(1/T) ∫ value dt over the part of the windows that the samples cover; None where they cover none of it."""
    seconds = covered_s(times_s, windows)
    return integrate(times_s, values, windows) / seconds if seconds > 0 else None


def average_memory_utilization(times_s: Sequence[float], used_bytes: Sequence[float], windows: Windows) -> float | None:
    """AMU = (1/T) ∫ memory_used(t) dt, in GB (10^9 bytes), of one device.

    Memory as the driver sees it, so the idle baseline is in it. Source: EfficientLLM, equation 1.
    """
    mean_bytes = time_average(times_s, used_bytes, windows)
    return None if mean_bytes is None else mean_bytes / BYTES_PER_GB


def peak_compute_utilization(
    times_s: Sequence[float], utilization: Sequence[float], windows: Windows, utilization_peak: float = 1.0
) -> float | None:
    """PCU = (1/T) ∫ utilization(t) / utilization_peak dt, a ratio, of one device.

    Utilization is the device's own busy fraction, which says that something ran, not how much of the device it
    filled: MFU says that. Source: EfficientLLM, equation 2.
    """
    mean = time_average(times_s, utilization, windows)
    return None if mean is None else mean / utilization_peak


def average_latency(step_times_s: Sequence[float]) -> float:
    """AL = Σ (compute_i + communication_i) / N, the mean synchronized wall time of a step, s.

    Each step's time is the largest over the ranks. Source: EfficientLLM, equation 3.
    """
    if not step_times_s:
        raise MetricsError("the average latency of no step at all is not defined")
    return math.fsum(step_times_s) / len(step_times_s)


def token_throughput(tokens: float, parameters: float, time_s: float) -> float:
    """TT = Σ (tokens_i / P) / Σ time_i, in tokens / parameter / s.

    Tokens and time are those of the same steps. Source: EfficientLLM, equation 4.
    """
    return tokens / _positive("parameters", parameters) / _positive("time_s", time_s)


def average_energy_consumption(energy_j: float, window_s: float) -> float:
    """AEC = (1/T) ∫ power(t) dt, W: mean power, despite its name. Source: EfficientLLM, equations 7 and 8.

    It ranks a slow, idle device as thrifty: compare energies by `energy_per_token`.
    """
    return energy_j / _positive("window_s", window_s)


def energy_per_token(energy_j: float, tokens: float) -> float:
    """J / token: the energy of the window over the tokens trained on in it."""
    return energy_j / _positive("tokens", tokens)


def flops_utilization(flops: float, window_s: float, devices: int, peak_flops: float) -> float:
    """FLOPs of the window / (T · D · peak FLOP/s of one device for that dtype, dense), a ratio.

    MFU with model FLOPs (forward plus twice as much backward, matmuls only, no recomputation; causal attention
    halved as in Megatron, or the full square as in PaLM, arXiv 2204.02311, appendix B, each under its own name);
    HFU with recomputation added.
    """
    available = _positive("window_s", window_s) * _positive("devices", devices) * _positive("peak_flops", peak_flops)
    return flops / available


def perplexity(mean_token_loss: float) -> float:
    """exp(mean token loss in nats).

    Raises:
        MetricsError: the loss is so large that its exponential is no finite number.
    """
    try:
        return math.exp(mean_token_loss)
    except OverflowError:
        raise MetricsError(f"exp of the loss {mean_token_loss} exceeds the largest float") from None


def bits_per_byte(mean_token_loss: float, tokens: int, utf8_bytes: int) -> float:
    """loss / ln 2 × tokens / UTF-8 bytes of the same text, bits: comparable between tokenizers."""
    return mean_token_loss / math.log(2) * tokens / _positive("utf8_bytes", utf8_bytes)


def load_imbalance(tokens_per_expert: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Tokens of a layer's busiest expert over the mean of its experts, for each layer: 1 where all get as many.

    Under expert parallelism all ranks wait for the busiest. `tokens_per_expert` is [layers][experts].
    """
    for layer in tokens_per_expert:
        _positive("tokens of a layer's experts", sum(layer))
    return tuple(max(layer) * len(layer) / sum(layer) for layer in tokens_per_expert)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` % of the values lie, straight between the two nearest ranks."""
    return _between(sorted(values), percent)


def percentiles(values: Sequence[float]) -> list[float]:
    """The 101 values from the smallest (0 %) to the largest (100 %), by the rule of `percentile`."""
    ordered = sorted(values)
    return [_between(ordered, percent) for percent in range(101)]


def _between(ordered: Sequence[float], percent: float) -> float:
    if not ordered:
        raise MetricsError("a percentile of no value at all is not defined")
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def standard_deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1 below the line); None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent values: standard deviation / √n; None for fewer than two."""
    deviation = standard_deviation(values)
    return None if deviation is None else deviation / math.sqrt(len(values))


def mean_confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % Student-t interval of the mean, which takes the values as independent; None for fewer than two."""
    deviation = standard_deviation(values)
    if deviation is None:
        return None
    mean = math.fsum(values) / len(values)
    margin = t_quantile_95(len(values) - 1) * deviation / math.sqrt(len(values))
    return mean - margin, mean + margin


def t_quantile_95(degrees_of_freedom: int) -> float:
    """Student's t that 95 % of values lie within, on both sides of 0."""
    if degrees_of_freedom <= len(_T_95):
        return _T_95[degrees_of_freedom - 1]
    # The first terms of the Cornish-Fisher expansion (Abramowitz and Stegun, 26.7.5): 1e-5 is right beyond 30.
    n, z = degrees_of_freedom, _Z_95
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise MetricsError(f"{name} must be above zero, and is {value}")
    return value
