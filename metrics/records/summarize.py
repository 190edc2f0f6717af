"""Turns a merged measurement into the figures of a record, and its validations into a curve."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from efficientbench.metrics.formulas.definitions import percentiles
from efficientbench.metrics.monitoring.aggregate import longest
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.facts import Measured, Quality, Reading, RunFacts, Tuning, Validation
from efficientbench.metrics.records.figure import computed, rows_of
from efficientbench.metrics.records.figures import Metrics
from efficientbench.metrics.records.record import MOST_OUTLIERS
from efficientbench.metrics.records.record_parts import Outlier, QualityPoint, TimeSpent, Window

MAXIMUM_DISTURBANCES = 500
"""The largest number of disturbances that a record lists: the longest ones."""


def measured_parts(run: RunMeasurement, outliers: Sequence[Outlier]) -> dict[str, Any]:
    """Return what a record has of a measurement beside figures, by its field names: timelines, waits, conditions, ….

    Of `outliers`, the MOST_OUTLIERS slowest steps are listed, in the order of the run.
    """
    slowest = sorted(outliers, key=lambda outlier: -outlier.step_time_s)[:MOST_OUTLIERS]
    return {
        "step_time_percentiles_s": percentiles(run.step_times_s) if run.step_times_s else None,
        "samples": run.samples,
        "sample_intervals_s": run.sample_intervals_s,
        "energy_doubt": run.energy_doubt,
        "timelines": list(run.timelines),
        "windows": [Window(begin_s, end_s) for begin_s, end_s in run.windows],
        "disturbances": longest(run.disturbances, MAXIMUM_DISTURBANCES),
        "rank_waits": list(run.waits),
        "rank_uses": list(run.rank_uses),
        "device_conditions": list(run.device_conditions),
        "machine_conditions": list(run.machine_conditions),
        "meters": list(run.meters),
        "outliers": sorted(slowest, key=lambda outlier: outlier.step),
    }


@dataclass(frozen=True)
class Summary:
    """The figures of a run, with the reasons for absent ones, and its outliers."""

    values: dict[str, Any]
    """Every field of `records.figures.Metrics`, and tokens and steps_measured."""
    unavailable: dict[str, str]
    outliers: list[Outlier] = field(default_factory=list)


def nothing_measured(reason: str) -> Summary:
    """Return the summary of a run that failed before it could measure: every figure is absent for `reason`."""
    names = Metrics.model_fields
    return Summary({"tokens": 0, "steps_measured": 0, **dict.fromkeys(names)}, dict.fromkeys(names, reason))


def summarize(
    run: RunMeasurement,
    facts: RunFacts,
    quality: Quality,
    interruptions: Mapping[int, str] | None = None,
    reading: Reading | None = None,
    tuned: Tuning | None = None,
    spent: TimeSpent | None = None,
    checkpoint_bound_s: float | None = None,
) -> Summary:
    """Return every figure of a record, absent ones with their reasons; the arguments are those of `Measured`."""
    measured = Measured(run, facts, quality, interruptions or {}, reading, tuned, spent, checkpoint_bound_s)
    values, unavailable = computed(rows_of(Metrics), measured, measured.measured)
    counts = {"tokens": run.tokens, "steps_measured": len(run.step_times_s)}
    return Summary(counts | values, unavailable, measured.outliers)


def quality_curve(run: RunMeasurement, validations: Sequence[Validation]) -> list[QualityPoint]:
    """Return each validation with the measured time and energy of the training before it.

    Time and energy cover measured steps alone, without evaluation, checkpoints and set-up.
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
