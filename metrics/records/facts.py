"""Holds what the figures of a run are computed from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas import definitions, statistics
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.monitoring.series import NO_STEP
from efficientbench.metrics.records.figure import finite, known
from efficientbench.metrics.records.outliers import disturbed_steps, find_outliers
from efficientbench.metrics.records.record_parts import NOT_TIMED, Outlier, TimeSpent

NOT_SAID = "the training loop did not say what it read"
"""Why the figures that need a run's `Reading` are absent."""

UNBOUNDED = "no checkpoint fell due by time: checkpoint.interval=0, or another training loop"
"""Why there is no bound of what a kill loses."""


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run that are known before it starts."""

    parameters: int | None
    """P; None, as the figures below, where the model's declarations have no formula for it."""
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
    """Dense peak of one device in the run's dtype, FLOP/s; None if it is not known."""
    peak_flops_source: str
    """The datasheet or 'configuration'; where the peak is None, the reason."""
    not_counted: str = "the model's declarations have no formula for what it needs"
    """Why parameters or FLOPs are None."""
    measured_peak_flops: float | None = None
    """Rate of matrix products that one device reached before the run, FLOP/s; None where it was not measured."""
    measured_peak_doubt: str | None = None
    """Why the measured rate is not used; None: it is."""


@dataclass(frozen=True)
class Quality:
    """What the model learned. A loss is a mean over tokens, in nats."""

    train_loss: float | None = None
    validation_loss: float | None = None
    validation_loss_se: float | None = None
    """Standard error of `validation_loss`."""
    validation_loss_se_values: int | None = None
    """Number of documents over which `validation_loss_se` is the spread."""
    validation_tokens: int | None = None
    """Tokens predicted in the validation text."""
    validation_bytes: int | None = None
    """UTF-8 bytes of the validation text."""
    auxiliary_loss: float | None = None
    """Load-balancing loss of a mixture of experts, without its factor."""
    tokens_per_expert: tuple[tuple[int, ...], ...] = ()
    """Tokens of each expert in the measured window, [layers][experts]; empty for a model without experts."""
    validation_documents: tuple[float, ...] = ()
    """Mean loss per token of each validation document."""
    validation_text: str | None = None
    """SHA-256 of the tokens predicted in the validation text."""
    supervised_tokens: int | None = None
    """Tokens of the measured steps over which the training loss is a mean."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Field → why it is None."""


@dataclass(frozen=True)
class Reading:
    """What a run has read of its text since its start."""

    tokens: int
    """Tokens trained on, warm-up and earlier attempts included."""
    sources: tuple[tuple[float, int], ...]
    """Each source's share of the samples, and its training tokens."""
    unigram_entropy: float
    """Entropy of the frequencies of the text's tokens, nats."""


@dataclass(frozen=True)
class Validation:
    """A validation, before the cost of the training before it is known."""

    step: int
    """The number of training steps before it."""
    tokens: int
    """Tokens trained on since the start, warm-up included."""
    measured_tokens: int
    """The part of `tokens` that measured steps trained on."""
    loss: float
    """Mean loss over tokens, nats."""
    loss_se: float | None
    """Standard error of the loss."""
    windows: int
    """Number of measured intervals that had ended."""
    loss_se_values: int | None = None
    """Number of documents over which `loss_se` is the spread."""


@dataclass(frozen=True)
class Tuning:
    """What a fine-tuning trained, and what its measured steps read."""

    trainable_parameters: int
    samples: int
    """Examples of the measured steps."""
    padded_tokens: int
    """Tokens of the same steps, with the padding of short examples to the longest of their micro-batch."""


@dataclass(frozen=True)
class Measured:
    """A run as the formulas of its figures read it. A part that is missing raises MetricsError with the reason."""

    run: RunMeasurement
    facts: RunFacts
    quality: Quality
    interruptions: Mapping[int, str]
    """Number of a step → event between it and the step before, such as an evaluation."""
    reading: Reading | None
    """What the run has read; None: the training loop did not say."""
    tuned: Tuning | None = None
    """What a fine-tuning trained; None: the run is no fine-tuning."""
    spent: TimeSpent | None = None
    """Where the wall time went; None: not known."""
    checkpoint_bound_s: float | None = None
    """Longest time after which a checkpoint fell due, s; None: none fell due by time."""

    def measured(self, name: str) -> Any:
        """Return a field of the measurement of all ranks."""
        return of_run(self.run, name)

    def waited(self, name: str) -> list[float]:
        """Return a field of every rank's RankWaits, s."""
        if not self.run.waits:
            raise MetricsError(self.run.unavailable.get("waits", NO_STEP))
        values = [getattr(rank, name) for rank in self.run.waits]
        if None in values:
            raise MetricsError("the pipeline has one stage")
        return values

    def learned(self, name: str, reason: str, like: str = "") -> Any:
        """Return a field of `quality`; raise its reason if it is absent, else the reason of `like`, else `reason`."""
        value, reasons = getattr(self.quality, name), self.quality.reasons
        if value is None or value == ():
            raise MetricsError(reasons.get(name, reasons.get(like, reason)))
        return value

    @property
    def supervised_tokens(self) -> int:
        """Return the number of tokens of the measured steps whose loss was trained on."""
        return self.learned("supervised_tokens", "the training loop did not say which tokens it learns")

    def of_model(self, name: str) -> Any:
        """Return a field of `facts` that the model's formulas give."""
        return known(getattr(self.facts, name), self.facts.not_counted)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Return the times of the measured steps, at least one."""
        if not self.run.step_times_s:
            raise MetricsError(NO_STEP)
        return self.run.step_times_s

    @property
    def step_time_std_s(self) -> float:
        """Return the standard deviation of the steps' times."""
        return known(definitions.standard_deviation(self.run.step_times_s), "a spread needs two measured steps")

    @cached_property
    def noise(self) -> statistics.StepTimeNoise:
        """Return the intervals of the steps' times."""
        return statistics.step_time_noise(self.run.step_times_s)

    @cached_property
    def drift(self) -> statistics.Drift:
        """Return the trend of the steps' times."""
        return statistics.drift(self.run.step_times_s)

    @cached_property
    def outliers(self) -> list[Outlier]:
        """Return the steps that took much longer than the others, with their causes."""
        run = self.run
        disturbed = disturbed_steps(run.step_numbers, run.step_begins_s, run.step_times_s, run.disturbances)
        return find_outliers(run.step_numbers, run.step_times_s, {**self.interruptions, **disturbed})

    @property
    def longest_sample_interval_s(self) -> float:
        """Return the longest mean interval of a device between readings of one quantity."""
        if not self.run.sample_intervals_s:
            raise MetricsError("no sensor took a sample inside the window")
        return max(self.run.sample_intervals_s.values())

    def throughput(self, shares: float) -> float:
        """Return tokens / `shares` / s over the steps' own time, without the harness's work between steps."""
        return definitions.token_throughput(self.run.tokens, shares, math.fsum(self.step_times_s))

    @property
    def peak_flops(self) -> float:
        """Return the peak of one device, FLOP/s."""
        return known(self.facts.peak_flops, self.facts.peak_flops_source)

    @property
    def measured_peak(self) -> float:
        """Return the rate of matrix products that one device reached before the run, FLOP/s."""
        if self.facts.measured_peak_doubt:
            raise MetricsError(self.facts.measured_peak_doubt)
        unmeasured = "no matrix products were measured" if self.facts.peak_flops is None else "the peak itself is known"
        return known(self.facts.measured_peak_flops, unmeasured)

    def utilization(self, flops_per_token: float, peak: float | None = None) -> float:
        """Return the steps' FLOPs over what the devices could compute in that time at `peak`, by default their own."""
        peak, time_s = peak or self.peak_flops, math.fsum(self.step_times_s)
        return definitions.flops_utilization(flops_per_token * self.run.tokens, time_s, self.facts.devices, peak)

    def share_of_peak(self, flops_per_token: float) -> float:
        """Return `utilization`. Raises MetricsError: it is above 1, so that the peak or the FLOPs are not the run's."""
        share = self.utilization(flops_per_token)
        if share > 1:
            raise MetricsError(f"{share:.3g} of the peak: the FLOPs of a token, or the peak, cannot be right")
        return share

    @property
    def validation_loss(self) -> float:
        """Return the last validation's loss, nats, a finite number."""
        return finite(self.learned("validation_loss", "no validation ran"))

    @property
    def validation_size(self) -> list[int]:
        """Return tokens and UTF-8 bytes of the validation text."""
        names, unknown = ("validation_tokens", "validation_bytes"), "the validation text's size in bytes is not known"
        return [self.learned(name, unknown, like="validation_bytes") for name in names]

    @property
    def tuning(self) -> Tuning:
        """Return what a fine-tuning trained and read."""
        return known(self.tuned, "the run is no fine-tuning")

    @property
    def net_energy_j(self) -> float:
        """Return the energy of the window beyond what idle devices take, J."""
        net_j: float = self.measured("energy_j") - self.measured("power_idle_w") * self.run.window_s
        if net_j <= 0:
            raise MetricsError("the devices took no more power than before the model was built")
        return net_j

    @property
    def wall(self) -> TimeSpent:
        """Return where the wall time went."""
        return known(self.spent, NOT_TIMED)

    @property
    def kill_bound_s(self) -> float:
        """Return the longest time of training that a kill loses, s."""
        return known(self.checkpoint_bound_s, UNBOUNDED)

    @property
    def text(self) -> Reading:
        """Return what the run has read."""
        return known(self.reading, NOT_SAID)


def of_run(run: RunMeasurement, name: str) -> Any:
    """Return a field of a measurement. Raises MetricsError with the reason where it is None."""
    return known(getattr(run, name), run.unavailable.get(name, "not measured"))
