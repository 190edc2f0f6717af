"""The cost to a quality: tokens, time and energy until the validation loss fell to a target.

Time and energy are those of training steps alone, without evaluation, checkpoints and set-up. The warm-up steps train
too but are not measured, since compilation and cold caches stretch them. Their tokens are charged at the measured
steps' mean rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import QualityPoint


@dataclass(frozen=True)
class Cost:
    """The cost of training until the validation loss first fell to a target."""

    tokens: float
    time_s: float
    energy_j: float | None
    """Energy, J; None where the run's energy was not measured."""


def cost_to_loss(record: RunRecord, target_loss: float, end: int = 0) -> Cost:
    """Return the tokens, time and energy until the validation loss first fell to the target.

    Between two validations the loss is interpolated linearly in the logarithm of the tokens, which nearly fits a power
    law. Time and energy are interpolated linearly in the tokens, since each token costs the same.

    Args:
        record: the run's record.
        target_loss: the validation loss to reach, nats per token.
        end: the end of each validation's 95 % interval that is taken for its loss: 1 the upper, -1 the lower, 0 the
            loss itself. The costs at both ends are the cost's interval.

    Raises:
        MetricsError: the run is speed only, has no validation or no measured step, was below the target at its first
            validation, or never reached the target.
    """
    points = [(point, loss + end * point.loss_margin) for point, loss in _points(record)]
    reached = next((i for i, (_, loss) in enumerate(points) if loss <= target_loss), None)
    if reached is None:
        best = min(loss for _, loss in points)
        raise MetricsError(
            f"{record.run} did not get to a validation loss of {target_loss:.4g}: its best is {best:.4g}"
        )
    if reached == 0:
        (first, loss), *_ = points
        if loss < target_loss:
            key = "training.validate_every_steps" if record.finetuning else "training.validate_every_tokens"
            raise MetricsError(
                f"{record.run} was below a validation loss of {target_loss:.4g} at its first validation, after "
                f"{first.tokens:,} tokens ({loss:.4g}): validate more often (runs: {key})"
            )
        return Cost(first.tokens, *_spent(record, first))
    (before, loss_before), (after, loss_after) = points[reached - 1 : reached + 1]
    share = (loss_before - target_loss) / (loss_before - loss_after)
    tokens = before.tokens * (after.tokens / before.tokens) ** share
    part = (tokens - before.tokens) / (after.tokens - before.tokens)
    (time_before, energy_before), (time_after, energy_after) = _spent(record, before), _spent(record, after)
    energy_j = None
    if energy_before is not None and energy_after is not None:
        energy_j = energy_before + part * (energy_after - energy_before)
    return Cost(tokens, time_before + part * (time_after - time_before), energy_j)


def lowest_common_loss(records: Sequence[RunRecord], end: int = 0) -> float:
    """Return the lowest validation loss that all the runs reached; `end` is that of `cost_to_loss`.

    Raises:
        MetricsError: a run has no validation, or is speed only.
    """
    return max(min(loss + end * point.loss_margin for point, loss in _points(record)) for record in records)


def _points(record: RunRecord) -> list[tuple[QualityPoint, float]]:
    """Return the validations whose loss is a number, each with its loss.

    Raises:
        MetricsError: the run has no such validation, or its losses say nothing about its architecture.
    """
    if record.speed_only_reason:
        raise MetricsError(f"{record.run} is speed only: {record.speed_only_reason}")
    points = [(point, point.loss) for point in record.quality_curve if point.loss is not None]
    if not points:
        raise MetricsError(f"{record.run} has no validation to measure a quality by")
    return points


def _spent(record: RunRecord, point: QualityPoint) -> tuple[float, float | None]:
    """Return the seconds and joules until a validation; warm-up tokens cost the measured tokens' mean rate."""
    unmeasured = point.tokens - point.measured_tokens
    if not record.tokens or record.al_s is None:
        raise MetricsError(f"{record.run} has no measured step to measure a cost by")
    time_s = point.train_s + unmeasured * record.al_s * record.steps_measured / record.tokens
    if point.energy_j is None or record.energy_j_per_token is None:
        return time_s, None
    return time_s, point.energy_j + unmeasured * record.energy_j_per_token
