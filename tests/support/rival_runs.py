"""Runs of several variants that differ in one figure alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support.metrics_parts import make_record

from efficientbench.metrics.records.record import RunRecord


def rival_runs(metric: str, figures: Mapping[str, Sequence[float]], **further: Any) -> list[RunRecord]:
    """Return a run for each figure of each variant, with consecutive seeds."""
    return [
        make_record(
            {
                **{"variant": variant, "run": f"{variant}_1.5B", "seed": seed, metric: value, **further},
                "config": {"training": {"seed": seed}, "model": {"attention": {"kind": variant}}},
            }
        )
        for variant, values in figures.items()
        for seed, value in enumerate(values)
    ]
