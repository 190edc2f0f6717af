"""Runs of several variants that differ in one figure alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats
from support.metrics_parts import make_record

from efficientbench.metrics.analysis.noise import DIFFERING
from efficientbench.metrics.records.record import RunRecord


def rival_runs(metric: str, figures: Mapping[str, Sequence[float]], **further: Any) -> list[RunRecord]:
    """Return a run for each figure of each variant, with consecutive seeds."""
    return [
        make_record(
            {
                **{"variant": variant, "run": f"{variant}_1.5B", "seed": seed, metric: value, **further},
                "config": {"training": {"seed": seed}, "model": _model(variant)},
            }
        )
        for variant, values in figures.items()
        for seed, value in enumerate(values)
    ]


def _model(variant: str) -> dict[str, Any]:
    return {"attention": {"kind": "gqa", "query_groups": 1} if variant == "mqa" else {"kind": variant}}


def by_scipy(figures: Mapping[str, Sequence[float]], first: str, second: str) -> tuple[float, float, float]:
    """Return the lower and upper end of the 95 % interval of second over first, and the p value of any pair.

    Tukey's test of the logarithms with the larger of the variance within all variants and of that within both; of its
    degrees DIFFERING are Satterthwaite's. All variants have as many runs; of two it is Welch's test.
    """
    logs = {name: np.log(values) for name, values in figures.items()}
    runs = len(logs[first])
    if len(logs) == 2:
        welch = stats.ttest_ind(logs[second], logs[first], equal_var=False)
        low, high = np.exp(list(welch.confidence_interval()))
        return float(low), float(high), float(welch.pvalue)
    variances = {name: values.var(ddof=1) for name, values in logs.items()}
    variance = max(np.mean(list(variances.values())), (variances[first] + variances[second]) / 2)
    own = np.array(list(variances.values()))
    degrees = (runs - 1) * ((1 - DIFFERING) * len(logs) + DIFFERING * own.sum() ** 2 / (own**2).sum())
    error = np.sqrt(variance * 2 / runs)
    difference = logs[second].mean() - logs[first].mean()
    margin = stats.t.ppf(0.975, degrees) * error
    low, high = np.exp([difference - margin, difference + margin])
    p_value = stats.studentized_range.sf(np.sqrt(2) * abs(difference) / error, len(logs), degrees)
    return float(low), float(high), float(p_value)
