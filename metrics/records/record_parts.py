"""The parts of a run's record that are more than one figure."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ExpertLoad(BaseModel):
    """What the experts of a mixture were given in the measured window."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    tokens_per_expert: list[list[int]]
    """[layers][experts], over all ranks; a token counts once for each expert that it goes to."""
    load_imbalance: list[float]
    """[layers]: tokens of the busiest expert over the mean of the layer's experts."""


class TimelineRecord(BaseModel):
    """One device over the whole run, in at most 500 buckets of equal length.

    All lists have one entry for each bucket that holds a sample; None where it holds none of that quantity.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    device: str
    """The device's uuid."""
    device_name: str
    scope: str
    """'gpu', 'npu', 'host', 'allocator' (one rank's own), or the energy scope of a meter of the host's power."""
    bucket_s: float
    time_s: list[float]
    """The bucket's middle, counted from the opening of the measured window: set-up and warm-up are negative."""
    memory_used_gb_mean: list[float | None]
    memory_used_gb_max: list[float | None]
    utilization_mean: list[float | None]
    """Busy fraction, 0 to 1."""
    utilization_max: list[float | None]
    power_w_mean: list[float | None]
    power_w_max: list[float | None]


class WindowRecord(BaseModel):
    """A measured interval, counted from the opening of the first one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    begin_s: float
    end_s: float


class DisturbanceRecord(WindowRecord):
    """A time in which something that is not of the run used a device."""

    device: str
    """The device's uuid."""
    description: str
    share: float | None
    """The largest part of the device that it took, 0 to 1; None where nobody can tell."""


class OutlierStep(BaseModel):
    """A step that took much longer than the others."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    step: int
    """Counted from 1, warm-up included."""
    step_time_s: float
    times_median: float
    cause: str | None
    """None where nothing is known to have happened."""


class QualityPoint(BaseModel):
    """A validation, and what training had cost until then."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    step: int
    tokens: int
    """Trained on since the start, warm-up included."""
    loss: float | None
    """Mean over the validation's tokens, nats; None where it is no finite number."""
    loss_se: float | None
    """Its standard error, from the spread over the validation's batches; None for a single batch."""
    measured_tokens: int
    """Those of `tokens` that were trained on in measured steps, whose cost is:"""
    train_s: float
    """Σ synchronized step times: without warm-up, evaluation, checkpoints and set-up."""
    energy_j: float | None
    """Of the same time; None where no sensor gives it (`unavailable` says why, under energy_j)."""


class DataSource(BaseModel):
    """A tokenized corpus that the run read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    source: str
    """Where the text came from, for people."""
    weight: float
    """Share of the run's samples that were drawn from it; the sources' shares sum to 1."""
    documents: int
    tokens: int
    fingerprint: str
    """SHA-256 of the tokens and their index: two runs with the same fingerprints and weights read the same data."""
    tokenizer_fingerprint: str
    """SHA-256 of everything that decides the tokenizer's ids."""
