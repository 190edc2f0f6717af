"""What a quality costs: validations with the time, energy and tokens until then, and the cost to a target loss.

Time and energy are those of training steps alone: evaluation, checkpoints and set-up are left out. The warm-up steps
train as well but are not measured, as compilation and cold caches stretch them: to the cost to a loss they are charged
at the measured steps' mean rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import QualityPoint


@dataclass(frozen=True)
class Cost:
    """What training had cost when the validation loss first fell to a target."""

    tokens: float
    time_s: float
    energy_j: float | None
    """None where the run's energy was not measured."""


def cost_to_loss(record: RunRecord, target_loss: float, loss_shift: float = 0.0) -> Cost:
    """Tokens, time and energy until the validation loss first fell to the target.

    Between two validations the loss is taken as linear in the logarithm of the tokens, which a power law nearly is;
    time and energy as linear in the tokens, of which each costs as much.

    Args:
        record: of the run.
        target_loss: nats per token.
        loss_shift: times the loss's standard error that is added to each validation: with ±1.96 the ends of an
            interval for a single run.

    Raises:
        MetricsError: the run never validated, began below the target, or never got there.
    """
    points = [(point, loss + loss_shift * (point.loss_se or 0.0)) for point, loss in _points(record)]
    reached = next((i for i, (_, loss) in enumerate(points) if loss <= target_loss), None)
    if reached is None:
        best = min(loss for _, loss in points)
        raise MetricsError(
            f"{record.run} did not get to a validation loss of {target_loss:.4g}: its best is {best:.4g}"
        )
    if reached == 0:
        (first, loss), *_ = points
        if loss < target_loss:
            raise MetricsError(
                f"{record.run} was below a validation loss of {target_loss:.4g} at its first validation, after "
                f"{first.tokens:,} tokens ({loss:.4g}): validate more often (training.validate_every_tokens)"
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


def lowest_common_loss(records: Sequence[RunRecord], loss_shift: float = 0.0) -> float:
    """The lowest validation loss that all the runs got to, with so many standard errors added to each loss.

    Raises:
        MetricsError: one of them never validated.
    """
    return max(min(loss + loss_shift * (point.loss_se or 0.0) for point, loss in _points(record)) for record in records)


def _points(record: RunRecord) -> list[tuple[QualityPoint, float]]:
    """The validations whose loss is a number, with it."""
    points = [(point, point.loss) for point in record.quality_curve if point.loss is not None]
    if not points:
        raise MetricsError(f"{record.run} has no validation to tell a quality by")
    return points


def _spent(record: RunRecord, point: QualityPoint) -> tuple[float, float | None]:
    """Seconds and joules until a validation, the warm-up's tokens charged at the mean rate of the measured ones."""
    unmeasured = point.tokens - point.measured_tokens
    if not record.tokens or record.al_s is None:
        raise MetricsError(f"{record.run} has no measured step to tell a cost by")
    time_s = point.train_s + unmeasured * record.al_s * record.steps_measured / record.tokens
    if point.energy_j is None or record.energy_j_per_token is None:
        return time_s, None
    return time_s, point.energy_j + unmeasured * record.energy_j_per_token
