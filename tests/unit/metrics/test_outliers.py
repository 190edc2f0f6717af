"""Outlier steps: which, by how much, and why."""

from __future__ import annotations

import numpy as np
import pytest

from efficientbench.metrics.device_use import Disturbance
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.records.outliers import Outlier, disturbed_steps, find_outliers


def test_slow_steps_are_named_with_what_is_known() -> None:
    times = list(np.random.default_rng(3).normal(0.2, 0.004, 200))
    times[10], times[150] = 0.5, 1.0
    found = find_outliers(range(6, 206), times, {16: "the first step after an evaluation", 17: "no matter"})
    assert [(outlier.step, outlier.cause) for outlier in found] == [
        (16, "the first step after an evaluation"),
        (156, None),
    ]
    assert found[1].step_time_s == 1.0
    assert found[1].times_median == pytest.approx(5, rel=0.01)


def test_small_excesses_and_fast_steps_are_none() -> None:
    assert find_outliers(range(7), [1.0, 1.0, 1.0, 1.0, 1.09, 1.0, 0.2]) == []
    assert find_outliers(range(5), [1.0, 1.0, 1.0, 1.0, 1.2]) == [Outlier(4, 1.2, 1.2, None)]
    assert find_outliers([], []) == []


def test_numbers_belong_to_steps() -> None:
    with pytest.raises(MetricsError, match="2 numbers for 1 steps"):
        find_outliers([1, 2], [1.0])


def test_a_step_during_which_others_used_the_device_says_so() -> None:
    disturbances = [Disturbance("GPU-0", 2.5, 3.0, "process 7 (blender)"), Disturbance("GPU-0", 2.9, 5.5, "process 9")]
    found = disturbed_steps([6, 7, 8, 9], [0.0, 2.0, 4.0, 6.0], [1.0, 1.0, 1.0, 1.0], disturbances)
    assert found == {
        7: "others on the device: process 7 (blender); others on the device: process 9",
        8: "others on the device: process 9",
    }
