"""Runs of several variants that differ in one figure alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats
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


def by_scipy(figures: Mapping[str, Sequence[float]], first: str, second: str) -> tuple[float, float, float]:
    """Return the lower and upper end of the 95 % interval of second over first, and the p value, not corrected.

    Welch's test of the logarithms, or Student's with the pooled noise of the other variants' repeats, where that allows
    a larger difference. All variants have as many runs.
    """
    logs = {name: np.log(values) for name, values in figures.items()}
    runs = len(logs[first])
    welch = stats.ttest_ind(logs[second], logs[first], equal_var=False)
    ends, p_value = welch.confidence_interval(), welch.pvalue
    others = [logs[name] for name in figures if name not in (first, second)]
    if others:
        degrees = len(others) * (runs - 1)
        error = np.sqrt(np.mean([values.var(ddof=1) for values in others]) * 2 / runs)
        difference = logs[second].mean() - logs[first].mean()
        pooled = 2 * stats.t.sf(abs(difference) / error, degrees)
        if pooled > p_value:
            margin = stats.t.ppf(0.975, degrees) * error
            ends, p_value = (difference - margin, difference + margin), pooled
    low, high = np.exp(list(ends))
    return float(low), float(high), float(p_value)
