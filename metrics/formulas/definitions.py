"""Defines every metric as a pure function of numbers: no device, no clock, no torch.

The five efficiency metrics follow EfficientLLM (arXiv 2505.13840, equations 1-8), so that a row compares with that
paper's tables. Symbols used below:

    T  length of the measured window, s        N  optimizer steps in it
    K  tokens trained on in it, all ranks      P  parameters        D  devices

Warm-up, evaluation, checkpoints and set-up lie outside the window and are in no figure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from efficientbench.basics.errors import MetricsError

Windows = Sequence[tuple[float, float]]
"""Measured intervals as (begin_s, end_s) pairs on one monotonic clock, in order and apart."""

BYTES_PER_GB = 1e9

FORMULAS = "efficientllm-2505.13840/3"
"""The formula id of a record: the source of the definitions, and the edition of this file.

The edition rises when a figure changes its meaning. Figures of different ids are not compared.
"""

HOLE_INTERVALS = 5
"""A gap between samples of more than this many intervals is a hole: the signal in it is unknown."""


def window_length_s(windows: Windows) -> float:
    """Return T, the summed length of the measured intervals, s, without the pauses between them."""
    return sum(end - begin for begin, end in windows)


def integrate(times_s: Sequence[float], values: Sequence[float], windows: Windows) -> float:
    """Return the trapezoidal integral of an irregularly sampled signal over the windows.

    The signal is a straight line from sample to sample by their own time stamps, and a window's edge between two
    samples cuts the line there. Time before the first or after the last sample is not covered, never guessed.

    Args:
        times_s: when each sample was taken, s, increasing. [n]
        values: the sampled values, in any unit u. [n]
        windows: the intervals to integrate over.

    Returns:
        The integral over the part of the windows that the samples cover, u · s.

    Raises:
        MetricsError: the lengths differ or the time stamps run backwards.
    """
    if len(times_s) != len(values):
        raise MetricsError(f"{len(times_s)} time stamps for {len(values)} samples: each sample needs one")
    integral = 0.0
    for begin, end in windows:
        # Skip the samples before the window by bisection: a run of days has millions, and each window asks again.
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
    """Return the time inside the windows that lies between the first and the last sample, s."""
    if not times_s:
        return 0.0
    return sum(max(min(times_s[-1], end) - max(times_s[0], begin), 0.0) for begin, end in windows)


def gaps_s(times_s: Sequence[float], windows: Windows) -> list[float]:
    """Return the times between neighbouring samples inside the windows, s; a window's edge cuts the gap it lies in."""
    gaps: list[float] = []
    for begin, end in windows if times_s else ():
        inside = times_s[bisect_right(times_s, begin) : bisect_left(times_s, end)]
        stamps = [max(begin, times_s[0]), *inside, min(end, times_s[-1])]
        gaps += [right - left for left, right in pairwise(stamps) if right > left]
    return gaps


def longest_interval_s(times_s: Sequence[float]) -> float:
    """Return the longest gap between samples that is no hole, s: HOLE_INTERVALS times the 90th percentile of the gaps.

    The percentile follows a sensor that has slowed down. Of up to ten gaps it is the largest, so that none is a hole.
    """
    gaps = sorted(right - left for left, right in pairwise(times_s))
    return HOLE_INTERVALS * gaps[min(int(0.9 * len(gaps)), len(gaps) - 1)] if gaps else 0.0


def time_average(times_s: Sequence[float], values: Sequence[float], windows: Windows) -> float | None:
    """Return (1/T) ∫ value dt over the part of the windows that the samples cover; None if they cover none of it."""
    seconds = covered_s(times_s, windows)
    return integrate(times_s, values, windows) / seconds if seconds > 0 else None


def average_memory_utilization(times_s: Sequence[float], used_bytes: Sequence[float], windows: Windows) -> float | None:
    """Return AMU = (1/T) ∫ memory_used(t) dt of one device, GB (10^9 bytes).

    Memory is as the sensor counts it, idle baseline included. Source: EfficientLLM, equation 1.
    """
    mean_bytes = time_average(times_s, used_bytes, windows)
    return None if mean_bytes is None else mean_bytes / BYTES_PER_GB


def peak_compute_utilization(
    times_s: Sequence[float], utilization: Sequence[float], windows: Windows, utilization_peak: float = 1.0
) -> float | None:
    """Return PCU = (1/T) ∫ utilization(t) / utilization_peak dt of one device, a ratio.

    Utilization is the device's own busy fraction: the time in which something ran, however little of the device it
    filled. MFU measures how much. Source: EfficientLLM, equation 2.
    """
    mean = time_average(times_s, utilization, windows)
    return None if mean is None else mean / utilization_peak


def average_latency(step_times_s: Sequence[float]) -> float:
    """Return AL = Σ (compute_i + communication_i) / N, the mean synchronized wall time of a step, s.

    Each step's time is the largest over the ranks. Source: EfficientLLM, equation 3.
    """
    if not step_times_s:
        raise MetricsError("the average latency of no step at all is not defined")
    return math.fsum(step_times_s) / len(step_times_s)


def token_throughput(tokens: float, parameters: float, time_s: float) -> float:
    """Return TT = Σ (tokens_i / P) / Σ time_i, tokens / parameter / s.

    Tokens and time come from the same steps. Source: EfficientLLM, equation 4.
    """
    return tokens / _positive("parameters", parameters) / _positive("time_s", time_s)


def average_energy_consumption(energy_j: float, window_s: float) -> float:
    """Return AEC = (1/T) ∫ power(t) dt, W: mean power, despite its name. Source: EfficientLLM, equations 7 and 8.

    A slow, idle device has a low AEC: compare energies by `energy_per_token`.
    """
    return energy_j / _positive("window_s", window_s)


def energy_per_token(energy_j: float, tokens: float) -> float:
    """Return the energy of the window over the tokens trained on in it, J / token."""
    return energy_j / _positive("tokens", tokens)


def flops_utilization(flops: float, time_s: float, devices: int, peak_flops: float) -> float:
    """Return FLOPs / (time · D · dense peak FLOP/s of one device in that dtype), a ratio.

    FLOPs and time come from the same steps, as in `token_throughput`.

    Of model FLOPs it is the MFU: forward plus twice as much backward, matmuls only, no recomputation. Causal attention
    counts half as in Megatron, or the full square as in PaLM (arXiv 2204.02311, appendix B), under two names. Of all
    FLOPs that devices compute it is the HFU: recomputation, scores that the backward pass recomputes, and padding
    count too.
    """
    available = _positive("time_s", time_s) * _positive("devices", devices) * _positive("peak_flops", peak_flops)
    return flops / available


def perplexity(mean_token_loss: float) -> float:
    """Return exp(mean token loss in nats).

    Raises:
        MetricsError: the exponential of the loss exceeds the largest float.
    """
    try:
        return math.exp(mean_token_loss)
    except OverflowError:
        raise MetricsError(f"exp of the loss {mean_token_loss} exceeds the largest float") from None


def bits_per_byte(mean_token_loss: float, tokens: int, utf8_bytes: int) -> float:
    """Return loss / ln 2 × tokens / UTF-8 bytes of the same text, bits: comparable between tokenizers."""
    return mean_token_loss / math.log(2) * tokens / _positive("utf8_bytes", utf8_bytes)


def model_compression_rate(bytes_before: float, bytes_after: float, kept: float) -> float:
    """Return MCR, (size before / size after) · kept quality; the kept quality is after over before, more is better.

    Source: EfficientLLM (arXiv 2505.13840), model compression rate.
    """
    return bytes_before / bytes_after * kept


def load_imbalance(tokens_per_expert: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Return each layer's load imbalance, the tokens of its busiest expert over its experts' mean: 1 if balanced.

    Under expert parallelism all ranks wait for the busiest expert. `tokens_per_expert` is [layers][experts].
    """
    for layer in tokens_per_expert:
        _positive("tokens of a layer's experts", sum(layer))
    return tuple(max(layer) * len(layer) / sum(layer) for layer in tokens_per_expert)


LEAST_TOKENS_PER_PARAMETER = 1.0
"""Below this, a model has hardly left its initial weights; about 20 are compute-optimal (arXiv 2203.15556)."""
MOST_EPOCHS = 4.0
"""Up to this many epochs, repeated text teaches nearly as much as new text (arXiv 2305.16264)."""


def text_read(tokens: int, sources: Sequence[tuple[float, int]]) -> tuple[int, float]:
    """Return how many different tokens a run read, and the epochs over its most repeated source.

    Args:
        tokens: number of tokens trained on.
        sources: each source's share of the samples, and its training tokens.
    """
    read = [(tokens * share, _positive("a source's tokens", size)) for share, size in sources]
    return round(math.fsum(min(part, size) for part, size in read)), max(part / size for part, size in read)


def speed_only_reason(
    tokens_per_parameter: float | None,
    epochs: float | None = None,
    loss: float | None = None,
    unigram_entropy: float | None = None,
) -> str | None:
    """Return why a run's losses say nothing about its architecture; None where they may be compared.

    A model whose loss is above the entropy of the tokens' frequencies, in nats, has not even learned the frequencies.
    A figure that is None is not checked.
    """
    if tokens_per_parameter is not None and tokens_per_parameter < LEAST_TOKENS_PER_PARAMETER:
        return f"{tokens_per_parameter:.2g} tokens per parameter are fewer than {LEAST_TOKENS_PER_PARAMETER:g}"
    if epochs is not None and epochs > MOST_EPOCHS:
        return f"{epochs:.2g} epochs are more than {MOST_EPOCHS:g}"
    if loss is not None and unigram_entropy is not None and loss > unigram_entropy:
        return f"the loss {loss:.3f} is above the entropy of single tokens, {unigram_entropy:.3f}"
    return None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` % of the values lie, interpolated between the two nearest ranks."""
    if not values:
        raise MetricsError("a percentile of no value at all is not defined")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def percentiles(values: Sequence[float]) -> list[float]:
    """Return the 101 percentiles from the smallest value (0 %) to the largest (100 %)."""
    ordered = sorted(values)  # once: values in order are sorted again in a single pass
    return [percentile(ordered, percent) for percent in range(101)]


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (denominator n - 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    # hypot, since squares overflow where a model diverged: its perplexity may be 1e200.
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of independent values, standard deviation / √n; None for fewer than two."""
    deviation = standard_deviation(values)
    return None if deviation is None else deviation / math.sqrt(len(values))


def ratio_standard_error(means: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return the standard error of Σ w m / Σ w over independent units; None for fewer than two.

    √(n / (n - 1) Σ w² (m - r)²) / Σ w, with r the weighted mean. Source: Cochran, Sampling Techniques (1977), 6.13.
    """
    n, total = len(means), math.fsum(weights)
    if n < 2:
        return None
    ratio = math.fsum(w * m for w, m in zip(weights, means, strict=True)) / total
    squares = math.fsum((w * (m - ratio)) ** 2 for w, m in zip(weights, means, strict=True))
    return math.sqrt(n / (n - 1) * squares) / total


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise MetricsError(f"{name} must be above zero, and is {value}")
    return value
