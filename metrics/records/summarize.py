"""Turns a merged measurement into the figures of a record, and its validations into a curve."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from efficientbench.metrics import definitions, statistics
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.monitoring.series import NO_STEP
from efficientbench.metrics.records.outliers import disturbed_steps, find_outliers
from efficientbench.metrics.records.record import Metrics
from efficientbench.metrics.records.record_parts import Outlier, QualityPoint


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run that are known before it starts."""

    parameters: int | None
    """None, as the figures below, where no formula gives it."""
    parameters_active: int | None
    devices: int
    """D: accelerators, or hosts where the host is the device."""
    flops_per_token: float | None
    """Model FLOPs of forward and backward, causal attention halved."""
    flops_per_token_full_square: float | None
    """`flops_per_token` with the full square of attention scores counted."""
    flops_per_token_hardware: float | None
    """`flops_per_token` with recomputation, scores computed again in the backward pass, and padding added."""
    peak_flops: float | None
    """Of one device for the run's dtype, dense, FLOP/s."""
    peak_flops_source: str
    """The datasheet or 'configuration'; where the peak is None, the reason."""


@dataclass(frozen=True)
class Quality:
    """What the model learned. A loss is a mean over tokens, in nats."""

    train_loss: float | None = None
    validation_loss: float | None = None
    validation_loss_se: float | None = None
    """Standard error of `validation_loss`."""
    validation_loss_se_values: int | None = None
    """Number of documents over which it is the spread."""
    validation_tokens: int | None = None
    """Tokens predicted in the validation text."""
    validation_bytes: int | None = None
    """UTF-8 bytes of the validation text."""
    auxiliary_loss: float | None = None
    """Load-balancing loss of a mixture of experts, without its factor."""
    tokens_per_expert: tuple[tuple[int, ...], ...] = ()
    """[layers][experts] of the measured window; empty for a model without experts."""
    validation_documents: tuple[float, ...] = ()
    """Mean loss of a token of each validation document."""
    validation_text: str | None = None
    """SHA-256 of the tokens predicted in the validation text."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Field → why it is None."""


@dataclass(frozen=True)
class Reading:
    """What a run has read of its text since its start."""

    tokens: int
    """Trained on, warm-up and earlier attempts included."""
    sources: tuple[tuple[float, int], ...]
    """Each source's share of the samples, and its training tokens."""
    unigram_entropy: float
    """Entropy of the frequencies of the text's tokens, nats."""


@dataclass(frozen=True)
class Validation:
    """A validation as it was made, before its cost is known."""

    step: int
    """The number of training steps before it."""
    tokens: int
    """Trained on since the start, warm-up included."""
    measured_tokens: int
    """Those of `tokens` that were trained on in measured steps."""
    loss: float
    """Mean over tokens, nats."""
    loss_se: float | None
    """Standard error of the loss."""
    windows: int
    """Number of measured intervals that were over."""
    loss_se_values: int | None = None
    """Number of documents over which `loss_se` is the spread."""


NO_FORMULA = "the model's declarations have no formula for what it needs"


@dataclass
class Summary:
    """The figures of a run, with the reasons for absent ones, and its outliers."""

    values: dict[str, Any] = field(default_factory=dict)
    """Every field of `records.record.Metrics`, and tokens and steps_measured."""
    unavailable: dict[str, str] = field(default_factory=dict)
    outliers: list[Outlier] = field(default_factory=list)

    def put(self, name: str, value: Any, reason: str = "not measured") -> None:
        """Set one figure; None, or a number that is not finite, is absent with a reason."""
        if isinstance(value, float) and not math.isfinite(value):
            value, reason = None, f"the number is not finite ({value})"
        self.values[name] = value
        if value is None:
            self.unavailable[name] = reason

    def compute(self, name: str, formula: Callable[[], Any], reason: str | None) -> None:
        """Set one figure by a formula, or absent for `reason` where that is not None."""
        if reason is not None:
            self.put(name, None, reason)
            return
        try:
            self.put(name, formula())
        except MetricsError as error:
            self.put(name, None, str(error))


def nothing_measured(reason: str) -> Summary:
    """Return the summary of a run that failed before it could measure: every figure absent for that reason."""
    summary = Summary({"tokens": 0, "steps_measured": 0})
    for name in Metrics.model_fields:
        summary.put(name, None, reason)
    return summary


def summarize(
    run: RunMeasurement,
    facts: RunFacts,
    quality: Quality,
    interruptions: Mapping[int, str] | None = None,
    reading: Reading | None = None,
) -> Summary:
    """Return every figure of a record, absent ones with their reasons.

    Args:
        run: the measurement of all ranks.
        facts: facts known before the start.
        quality: losses and expert loads.
        interruptions: number of a step → event between it and the step before, such as an evaluation.
        reading: what was read of which text; None: the training loop did not say.
    """
    summary = Summary({"tokens": run.tokens, "steps_measured": len(run.step_times_s)})
    _devices(summary, run)
    _latency(summary, run)
    _outliers(summary, run, interruptions or {})
    _throughput(summary, run, facts)
    _energy(summary, run)
    _flops(summary, run, facts)
    _quality(summary, quality)
    _experts(summary, quality)
    _reading(summary, facts, reading)
    return summary


_OF_DEVICES = {
    "amu_gb": ("amu_gb", "amu_gb"),
    "amu_gb_max": ("amu_gb_max", "amu_gb"),
    "amu_fraction": ("amu_fraction", "amu_fraction"),
    "amu_fraction_max": ("amu_fraction_max", "amu_fraction"),
    "memory_idle_gb": ("memory_idle_gb", "memory_idle_gb"),
    "memory_kind": ("memory_kind", "amu_gb"),
    "memory_allocated_mean_gb": ("allocated_mean_gb", "allocated_mean_gb"),
    "peak_memory_device_bytes": ("peak_used_bytes", "peak_used_bytes"),
    "peak_memory_allocated_bytes": ("peak_allocated_bytes", "peak_allocated_bytes"),
    "peak_memory_reserved_bytes": ("peak_reserved_bytes", "peak_reserved_bytes"),
    "pcu": ("pcu", "pcu"),
}
"""Figure of the record → its field in the measurement, and the field whose reason explains its absence."""


def _devices(summary: Summary, run: RunMeasurement) -> None:
    for name, (source, reason_of) in _OF_DEVICES.items():
        summary.put(name, getattr(run, source), run.unavailable.get(reason_of, "not measured"))
    summary.put("device_scope", run.device_scope, "no sensor of a device was in use")
    longest_s = max(run.sample_intervals_s.values(), default=None)
    summary.put("sample_interval_s", longest_s, "no sensor took a sample inside the window")


def _latency(summary: Summary, run: RunMeasurement) -> None:
    times = run.step_times_s
    reason = None if times else NO_STEP
    summary.compute("al_s", lambda: definitions.average_latency(times), reason)
    for percent in (50, 90, 99):
        summary.compute(f"al_s_p{percent}", partial(definitions.percentile, times, percent), reason)
    too_few = None if len(times) > 1 else "a spread needs two measured steps"
    deviation = definitions.standard_deviation(times) or 0.0
    summary.compute("al_s_std", lambda: deviation, too_few)
    summary.compute("al_s_cv", lambda: deviation / definitions.average_latency(times), too_few)
    summary.compute("window_s", lambda: run.window_s, reason)
    for names, formula in ((_NOISE, _noise), (_DRIFT, _drift)):
        values, why = (None,) * len(names), ""
        try:
            values = formula(times)
        except MetricsError as error:
            why = str(error)
        for name, value in zip(names, values, strict=True):
            summary.put(name, value, why)


_NOISE = ("al_s_ci_low", "al_s_ci_high", "al_s_p50_ci_low", "al_s_p50_ci_high", "al_s_block_steps")
_DRIFT = (*("al_s_drift_ratio", "al_s_drift_ratio_low", "al_s_drift_ratio_high", "al_s_drift_p", "al_s_drift_flagged"),)


def _noise(times: Sequence[float]) -> tuple[Any, ...]:
    noise = statistics.step_time_noise(times)
    return (*noise.mean, *noise.median, noise.block_steps)


def _drift(times: Sequence[float]) -> tuple[Any, ...]:
    drift = statistics.drift(times)
    return drift.ratio, drift.low, drift.high, drift.p_value, drift.flagged


def _outliers(summary: Summary, run: RunMeasurement, interruptions: Mapping[int, str]) -> None:
    times = run.step_times_s
    disturbed = disturbed_steps(run.step_numbers, run.step_begins_s, times, run.disturbances)
    summary.outliers = find_outliers(run.step_numbers, times, {**interruptions, **disturbed})
    summary.put("outlier_steps", len(summary.outliers) if times else None, NO_STEP)


def _throughput(summary: Summary, run: RunMeasurement, facts: RunFacts) -> None:
    tokens, time_s = run.tokens, math.fsum(run.step_times_s)
    reason = None if run.step_times_s else NO_STEP
    for name, shares in (
        ("tt_tokens_per_param_s", facts.parameters),
        ("tt_tokens_per_active_param_s", facts.parameters_active),
        ("tokens_per_s", 1),
        ("tokens_per_s_per_device", facts.devices),
    ):
        formula = partial(definitions.token_throughput, tokens, shares or 0, time_s)
        summary.compute(name, formula, NO_FORMULA if shares is None else reason)


def _energy(summary: Summary, run: RunMeasurement) -> None:
    energy_j = run.energy_j
    reason = run.unavailable.get("energy_j", "not measured") if energy_j is None else None
    for name in ("energy_j", "aec_w", "power_w_sum", "energy_scope", "energy_source"):
        summary.put(name, getattr(run, name), reason or "")
    joules = energy_j or 0.0
    summary.compute("energy_j_per_token", lambda: definitions.energy_per_token(joules, run.tokens), reason)
    summary.compute("energy_j_per_step", lambda: joules / len(run.step_times_s), reason)
    summary.compute("tokens_per_j", lambda: 1 / definitions.energy_per_token(joules, run.tokens), reason)


def _flops(summary: Summary, run: RunMeasurement, facts: RunFacts) -> None:
    peak = facts.peak_flops
    reason = facts.peak_flops_source if peak is None else None if run.step_times_s else NO_STEP
    summary.put("peak_flops", peak, facts.peak_flops_source)
    summary.put("peak_flops_source", None if peak is None else facts.peak_flops_source, facts.peak_flops_source)
    for name, flops_per_token in (
        ("mfu", facts.flops_per_token),
        ("mfu_full_square", facts.flops_per_token_full_square),
        ("hfu", facts.flops_per_token_hardware),
    ):
        flops = (flops_per_token or 0.0) * run.tokens
        # Over the steps' own time, as throughput is: between them lies the harness's bookkeeping.
        time_s = math.fsum(run.step_times_s)
        formula = partial(definitions.flops_utilization, flops, time_s, facts.devices, peak or 0.0)
        summary.compute(name, formula, NO_FORMULA if flops_per_token is None else reason)


def _quality(summary: Summary, quality: Quality) -> None:
    summary.put("train_loss", quality.train_loss, quality.reasons.get("train_loss", "no step was trained"))
    loss, tokens, size = quality.validation_loss, quality.validation_tokens, quality.validation_bytes
    no_validation = quality.reasons.get("validation_loss", "no validation ran")
    summary.put("validation_loss", loss, no_validation)
    why = quality.reasons.get("validation_loss_se", no_validation)
    summary.put("validation_loss_se", quality.validation_loss_se if loss is not None else None, why)
    reason = summary.unavailable.get("validation_loss")
    summary.compute("perplexity", partial(definitions.perplexity, loss or 0.0), reason)
    if tokens is None or size is None:
        reason = reason or quality.reasons.get("validation_bytes", "the validation text's size in bytes is not known")
    summary.compute("bits_per_byte", partial(definitions.bits_per_byte, loss or 0.0, tokens or 0, size or 0), reason)


def _experts(summary: Summary, quality: Quality) -> None:
    none = quality.reasons.get("tokens_per_expert", "the model has no experts")
    summary.put("auxiliary_loss", quality.auxiliary_loss, quality.reasons.get("auxiliary_loss", none))
    by_layer = definitions.load_imbalance(quality.tokens_per_expert)
    summary.put("expert_load_imbalance", math.fsum(by_layer) / len(by_layer) if by_layer else None, none)


def _reading(summary: Summary, facts: RunFacts, reading: Reading | None) -> None:
    if reading is None:
        for name in ("tokens_trained", "tokens_per_parameter", "unique_tokens", "epochs", "unigram_entropy"):
            summary.put(name, None, "the training loop did not say what it read")
        return
    unique, epochs = definitions.text_read(reading.tokens, reading.sources)
    summary.put("tokens_trained", reading.tokens)
    summary.put("tokens_per_parameter", facts.parameters and reading.tokens / facts.parameters, NO_FORMULA)
    summary.put("unique_tokens", unique)
    summary.put("epochs", epochs)
    summary.put("unigram_entropy", reading.unigram_entropy)


def quality_curve(run: RunMeasurement, validations: Sequence[Validation]) -> list[QualityPoint]:
    """Return each validation with the measured time and energy of the training before it.

    Time and energy are those of measured steps alone: evaluation, checkpoints and set-up are left out.
    """
    points = []
    for validation in validations:
        measured = bisect_right(run.step_numbers, validation.step)
        has_energy = len(run.window_energy_j) >= validation.windows and run.energy_j is not None
        points.append(
            QualityPoint(
                step=validation.step,
                tokens=validation.tokens,
                loss=_finite(validation.loss),
                loss_se=_finite(validation.loss_se),
                loss_se_values=validation.loss_se_values,
                measured_tokens=validation.measured_tokens,
                train_s=math.fsum(run.step_times_s[:measured]),
                energy_j=math.fsum(run.window_energy_j[: validation.windows]) if has_energy else None,
            )
        )
    return points


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
