"""Repeats as one record, so that every report shows a row for each group of runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from efficientbench.metrics.analysis.repeats import Group, group_repeats
from efficientbench.metrics.definitions import standard_deviation, standard_error, t_quantile_95
from efficientbench.metrics.ratio import Z_95
from efficientbench.metrics.records.record import Metrics, RunRecord
from efficientbench.metrics.records.record_parts import QualityPoint

_OF_ONE_RUN = ("al_s_block_steps", "al_s_drift_p")
_INTERVALS = ("al_s", "al_s_p50")


def combine_repeats(records: Iterable[RunRecord]) -> list[RunRecord]:
    """One record for each group of repeats; a run that nothing repeats stays as it is."""
    return [combine(group) for group in group_repeats(records)]


def combine(group: Group) -> RunRecord:
    """The mean of each figure over the repeats.

    Counts of outliers are added up; the drift is the largest, flagged where a repeat's is. The intervals of `al_s` and
    `al_s_p50` and the loss's standard error are those of the spread over the repeats. A figure that one repeat lacks is
    absent for that repeat's reason. What is no figure is the first repeat's.
    """
    records = group.records
    if len(records) == 1:
        return group.first
    values: dict[str, Any] = {}
    unavailable: dict[str, str] = {}
    deviations: dict[str, float] = {}
    for name in Metrics.model_fields:
        lacking = next((record for record in records if getattr(record, name) is None), None)
        if name in _OF_ONE_RUN or lacking is not None:
            values[name] = None
            unavailable[name] = lacking.unavailable[name] if lacking is not None else "each repeat has its own"
            continue
        given = [getattr(record, name) for record in records]
        values[name] = _mean(name, given)
        if isinstance(given[0], float):
            deviations[name] = standard_deviation(given) or 0.0
    for name in _INTERVALS:
        spread = group.spread(name)
        if spread is not None and spread.low is not None:
            values |= {f"{name}_ci_low": spread.low, f"{name}_ci_high": spread.high}
            deviations.pop(f"{name}_ci_low", None)
            deviations.pop(f"{name}_ci_high", None)
    if values["validation_loss"] is not None:
        values["validation_loss_se"] = _few_runs_error(group.values("validation_loss"))
        unavailable.pop("validation_loss_se", None)
    further = {
        "repeats": len(records),
        "repeat_std": deviations,
        "unavailable": unavailable,
        "duration_s": math.fsum(record.duration_s for record in records) / len(records),
        "outliers": [outlier for record in records for outlier in record.outliers],
        "quality_curve": _mean_curve(group),
        "resumed_after_steps": min((record.resumed_after_steps for record in records), key=len),
        "disturbances": [disturbance for record in records for disturbance in record.disturbances],
    }
    return group.first.model_copy(update=values | further)


def _mean(name: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, str):
        return " and ".join(dict.fromkeys(values))
    if name == "outlier_steps":
        return sum(values)
    if name == "al_s_drift":
        return max(values, key=abs)
    mean = math.fsum(values) / len(values)
    return round(mean) if isinstance(first, int) else mean


def _few_runs_error(values: list[float]) -> float | None:
    """The mean's standard error, widened so that 1.96 of it are the 95 % interval of so few runs (Student's)."""
    error = standard_error(values)
    return None if error is None else error * t_quantile_95(len(values) - 1) / Z_95


def _mean_curve(group: Group) -> list[QualityPoint]:
    """The validations that all repeats made, after the same steps.

    Costs are those of the repeats that ran in one go: a resumed one has measured its last attempt alone. Where all were
    resumed, the first repeat's stand for all.
    """
    by_step = [{point.step: point for point in record.quality_curve} for record in group.records]
    in_one_go = [number for number, record in enumerate(group.records) if not record.resumed_after_steps] or [0]
    curve = []
    for step, first in by_step[in_one_go[0]].items():
        losses = [points[step].loss for points in by_step if step in points]
        known = [loss for loss in losses if loss is not None]
        points = [by_step[number][step] for number in in_one_go if step in by_step[number]]
        energies = [point.energy_j for point in points if point.energy_j is not None]
        if len(known) < len(by_step):
            continue
        mean = {
            "loss": math.fsum(known) / len(known),
            "loss_se": _few_runs_error(known),
            "train_s": math.fsum(point.train_s for point in points) / len(points),
            "energy_j": math.fsum(energies) / len(energies) if len(energies) == len(points) else None,
        }
        curve.append(first.model_copy(update=mean))
    return curve
