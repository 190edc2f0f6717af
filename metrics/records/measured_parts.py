"""The parts of a record that a measurement gives as they are, whatever was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from efficientbench.metrics.definitions import percentiles
from efficientbench.metrics.monitoring.aggregate import longest
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.record import MOST_OUTLIERS
from efficientbench.metrics.records.record_parts import Outlier, Window

MAXIMUM_DISTURBANCES = 500
"""A record keeps this many disturbances, the longest ones."""


def measured_parts(run: RunMeasurement, outliers: Sequence[Outlier]) -> dict[str, Any]:
    """Return samples, timelines, windows, disturbances, waits, conditions and step times, by the record's field names.

    `outliers`: of the steps; the MOST_OUTLIERS slowest are kept, in the order of the run.
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
        "outliers": sorted(slowest, key=lambda outlier: outlier.step),
    }
