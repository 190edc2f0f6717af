"""What used a device, how much, and how long ranks waited: plain data that a measurement and a record share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeline:
    """One device over the whole run, in at most 500 buckets of equal length.

    All lists have one entry for each bucket that holds a sample. An entry is None where the bucket lacks the quantity.
    """

    device: str
    """The device's uuid."""
    device_name: str
    scope: str
    """'gpu', 'npu', 'host', 'allocator' (one rank's own), or the energy scope of a meter of the host's power."""
    bucket_s: float
    """Length of a bucket, s."""
    time_s: list[float]
    """The middle of the bucket, counted from the opening of the measured window: set-up and warm-up are negative."""
    memory_used_gb_mean: list[float | None]
    memory_used_gb_max: list[float | None]
    utilization_mean: list[float | None]
    """Busy fraction, 0 to 1."""
    utilization_max: list[float | None]
    power_w_mean: list[float | None]
    power_w_max: list[float | None]

    def __post_init__(self) -> None:
        """Raise ValueError for a bucket of no length, and for lists of different lengths."""
        lists = [value for value in vars(self).values() if isinstance(value, list)]
        if not self.bucket_s > 0 or len(set(map(len, lists))) > 1:
            raise ValueError("a timeline needs a bucket_s above 0, and lists of one length")


@dataclass(frozen=True)
class Disturbance:
    """A time in which something that is not of the run used a device."""

    device: str
    """The device's uuid."""
    begin_s: float
    """Counted from the opening of the measured window, s; from looks at intervals, so true to a second or so."""
    end_s: float
    """On the same scale as `begin_s`, s."""
    description: str
    share: float | None = None
    """The largest part of the device that it took, 0 to 1; None where nobody can tell."""


@dataclass(frozen=True)
class RankWaits:
    """How long one rank's device waited for other ranks in a step, mean over the measured steps."""

    rank: int
    communication_s: float
    """For ranks of its own pipeline stage, and for what they send each other, where no computing hides it."""
    pipeline_s: float | None
    """For the other stages of its pipeline, and for what it gets from them; None where there is one stage."""
