"""The validations of a run as its record holds them: each with the time and energy of the training before it.

Time and energy are those of measured training steps alone: evaluation, checkpoints and set-up are left out.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.record_parts import QualityPoint


@dataclass(frozen=True)
class Validation:
    """A validation as it was made."""

    step: int
    """The number of training steps before it."""
    tokens: int
    """Trained on since the start, warm-up included."""
    measured_tokens: int
    """Those of them in measured steps."""
    loss: float
    """Mean over tokens, nats."""
    loss_se: float | None
    """Standard error of the loss."""
    windows: int
    """Measured intervals that were over."""


def quality_curve(run: RunMeasurement, validations: Sequence[Validation]) -> list[QualityPoint]:
    """Each validation with the measured cost of the training before it."""
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
                measured_tokens=validation.measured_tokens,
                train_s=math.fsum(run.step_times_s[:measured]),
                energy_j=math.fsum(run.window_energy_j[: validation.windows]) if has_energy else None,
            )
        )
    return points


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
