"""From a merged measurement to the record's figures, by hand-computed ones, and which steps are outliers."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from support.metrics_parts import GB, HandClock, TraceSensor, make_record, measure_steps, monitor_of, run_steps

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics import merge
from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.facts import Quality, Reading, RunFacts
from efficientbench.metrics.records.figures import Metrics
from efficientbench.metrics.records.outliers import disturbed_steps, find_outliers
from efficientbench.metrics.records.record_parts import Outlier
from efficientbench.metrics.records.summarize import nothing_measured, summarize

FACTS = RunFacts(
    parameters=1000,
    parameters_active=250,
    devices=2,
    flops_per_token=6000.0,
    flops_per_token_full_square=7000.0,
    flops_per_token_hardware=8000.0,
    peak_flops=3e5,
    peak_flops_source="a datasheet",
)
QUALITY = Quality(train_loss=2.5, validation_loss=math.log(16), validation_tokens=300, validation_bytes=1200)


def measured(*times_s: float) -> RunMeasurement:
    """Two GPUs at 30 GB, 50 % and 200 W each, over one window."""
    clock = HandClock(0)
    sensor = TraceSensor(clock, ("A", "B"), lambda t: 30 * GB, lambda t: 0.5, lambda t: 200.0)
    return measure_steps(clock, sensor, times_s=times_s, readings=32)


def test_every_figure_matches_its_hand_computed_value() -> None:
    summary = summarize(measured(1, 2, 3, 4), FACTS, QUALITY)
    assert set(summary.values) - {"tokens", "steps_measured"} == set(Metrics.model_fields)
    expected = {
        "tokens": 400,
        "steps_measured": 4,
        "window_s": 10,
        "amu_gb": 30,
        "amu_fraction": 0.375,
        "pcu": 0.5,
        "al_s": 2.5,
        "al_s_p50": 2.5,
        "al_s_p90": 3.7,
        "al_s_p99": 3.97,
        "al_s_std": math.sqrt(5 / 3),
        "al_s_cv": math.sqrt(5 / 3) / 2.5,
        "tt_tokens_per_param_s": 400 / 1000 / 10,
        "tt_tokens_per_active_param_s": 400 / 250 / 10,
        "tokens_per_s": 40,
        "tokens_per_s_per_device": 20,
        "aec_w": 200,
        "power_w_sum": 400,
        "energy_j": 4000,
        "energy_j_per_token": 10,
        "energy_j_per_step": 1000,
        "tokens_per_j": 0.1,
        "energy_scope": "gpu",
        "device_scope": "gpu",
        "energy_source": "integrated power",
        "mfu": 6000 * 400 / (10 * 2 * 3e5),
        "mfu_full_square": 7000 * 400 / (10 * 2 * 3e5),
        "hfu": 8000 * 400 / (10 * 2 * 3e5),
        "perplexity": 16,
        "bits_per_byte": 1,
        "train_loss": 2.5,
        "peak_memory_device_bytes": 30 * GB,
    }
    assert {name: summary.values[name] for name in expected} == pytest.approx(expected)

    record = make_record({**summary.values, "unavailable": summary.unavailable})
    assert record.unavailable.keys() == {n for n in Metrics.model_fields if getattr(record, n) is None}
    assert record.unavailable["peak_memory_allocated_bytes"] == "no allocator sensor was in use"


def test_throughput_and_utilization_share_one_time_base() -> None:
    clock = HandClock(0)
    with monitor_of(clock) as monitor:
        for _ in range(4):
            run_steps(monitor, clock, 2.0)
            clock.pass_time(0.5)  # what a harness does between two steps
    values = summarize(merge([monitor.finish()]), FACTS, QUALITY).values
    assert (values["window_s"], values["tokens_per_s"]) == (10, 50)
    assert values["mfu"] == pytest.approx(values["tokens_per_s"] * 6000 / (2 * 3e5))


def test_figures_of_the_text_read_match_hand_counts() -> None:
    reading = Reading(tokens=4000, sources=((0.75, 6000), (0.25, 100)), unigram_entropy=5.5)
    summary = summarize(measured(1, 2), FACTS, QUALITY, reading=reading)
    expected = {
        "tokens_trained": 4000,
        "tokens_per_parameter": 4.0,
        "unique_tokens": 3100,
        "epochs": 10.0,
        "unigram_entropy": 5.5,
    }
    assert {name: summary.values[name] for name in expected} == expected
    assert summarize(measured(1), FACTS, QUALITY).unavailable["epochs"] == "the training loop did not say what it read"


def test_supervised_tokens_have_figures_beside_computed_tokens() -> None:
    summary = summarize(measured(1, 2, 3, 4), FACTS, dataclasses.replace(QUALITY, supervised_tokens=100))
    assert (summary.values["tokens"], summary.values["tokens_per_s"], summary.values["energy_j_per_token"]) == (
        400,
        40,
        10,
    )
    expected = {"supervised_tokens": 100, "supervised_tokens_per_s": 10, "energy_j_per_supervised_token": 40}
    assert {name: summary.values[name] for name in expected} == pytest.approx(expected)
    unsaid = summarize(measured(1), FACTS, QUALITY).unavailable
    assert {unsaid[name] for name in expected} == {"the training loop did not say which tokens it learns"}


def test_an_unknown_peak_leaves_mfu_absent_with_a_reason() -> None:
    facts = dataclasses.replace(FACTS, peak_flops=None, peak_flops_source="a CPU has no row in the table")
    summary = summarize(measured(10), facts, QUALITY)
    for name in ("mfu", "mfu_full_square", "hfu", "peak_flops"):
        assert summary.values[name] is None
        assert summary.unavailable[name] == "a CPU has no row in the table"
    assert summary.values["tokens_per_s"] == pytest.approx(10)


def test_a_single_step_has_a_time_and_no_spread() -> None:
    summary = summarize(measured(2), FACTS, QUALITY)
    assert (summary.values["al_s"], summary.values["al_s_ci_low"]) == (2, None)
    assert summary.unavailable["al_s_std"] == "a spread needs two measured steps"
    assert summary.unavailable["al_s_ci_low"] == "a 95 % interval needs 30 measured steps; this run has 1"


def test_a_run_without_a_step_has_only_quality() -> None:
    summary = summarize(measured(), FACTS, QUALITY)
    present = {name: value for name, value in summary.values.items() if value is not None}
    assert (present.pop("tokens"), present.pop("steps_measured")) == (0, 0)
    assert set(present) == {
        *("train_loss", "validation_loss", "perplexity", "bits_per_byte", "device_scope", "memory_kind"),
        *("memory_idle_gb", "peak_flops", "peak_flops_source"),
    }
    assert summary.unavailable["mfu"] == summary.unavailable["al_s"] == "no step was measured"


@pytest.mark.parametrize(
    ("quality", "reasons"),
    [
        (
            Quality(train_loss=math.nan, validation_loss=math.inf),
            {"train_loss": "not finite .nan", "validation_loss": "not finite .inf", "perplexity": "not finite"},
        ),
        (Quality(validation_loss=900.0), {"perplexity": "exceeds the largest float", "bits_per_byte": "size in bytes"}),
        (Quality(), {"train_loss": "no step was trained", "bits_per_byte": "no validation ran"}),
        (Quality(reasons={"validation_loss": "stopped early"}), {"perplexity": "stopped early"}),
    ],
)
def test_a_nan_or_infinite_quality_is_absent_with_a_reason(quality: Quality, reasons: dict[str, str]) -> None:
    summary = summarize(measured(), FACTS, quality)
    for name, reason in reasons.items():
        assert summary.values[name] is None
        assert re.search(reason, summary.unavailable[name]), summary.unavailable[name]


def test_figures_of_experts_are_absent_for_a_model_without_experts() -> None:
    experts = Quality(auxiliary_loss=1.25, tokens_per_expert=((2, 2), (3, 1), (4, 0)))
    given = summarize(measured(), FACTS, experts).values
    assert (given["auxiliary_loss"], given["expert_load_imbalance"]) == (1.25, 1.5)
    absent = summarize(measured(), FACTS, Quality()).unavailable
    assert absent["auxiliary_loss"] == absent["expert_load_imbalance"] == "the model has no experts"
    without = Quality(tokens_per_expert=((1, 1),), reasons={"auxiliary_loss": "its factor is 0"})
    assert summarize(measured(), FACTS, without).unavailable["auxiliary_loss"] == "its factor is 0"


def test_a_run_that_failed_early_has_a_record() -> None:
    summary = nothing_measured("rank 1 ended: out of memory")
    record = make_record({**summary.values, "unavailable": summary.unavailable, "status": "failed"})
    assert set(record.unavailable.values()) == {"rank 1 ended: out of memory"}


def test_slow_steps_are_named_with_their_known_cause() -> None:
    times = list(np.random.default_rng(3).normal(0.2, 0.004, 200))
    times[10], times[150] = 0.5, 1.0
    found = find_outliers(range(6, 206), times, {16: "the first step after an evaluation", 17: "no matter"})
    assert [(outlier.step, outlier.step_time_s, outlier.times_median, outlier.cause) for outlier in found] == [
        (16, 0.5, pytest.approx(2.5, rel=0.01), "the first step after an evaluation"),
        (156, 1.0, pytest.approx(5, rel=0.01), None),
    ]


def test_slightly_slow_and_fast_steps_are_no_outliers() -> None:
    assert find_outliers(range(7), [1.0, 1.0, 1.0, 1.0, 1.09, 1.0, 0.2]) == []
    assert find_outliers(range(5), [1.0, 1.0, 1.0, 1.0, 1.2]) == [Outlier(4, 1.2, 1.2, None)]
    assert find_outliers([], []) == []
    with pytest.raises(MetricsError, match="2 numbers for 1 steps"):
        find_outliers([1, 2], [1.0])


def test_a_step_slowed_by_another_process_on_the_device_has_that_cause() -> None:
    disturbances = [Disturbance("GPU-0", 2.5, 3.0, "process 7 (blender)"), Disturbance("GPU-0", 2.9, 5.5, "process 9")]
    found = disturbed_steps([6, 7, 8, 9], [0.0, 2.0, 4.0, 6.0], [1.0, 1.0, 1.0, 1.0], disturbances)
    assert found == {
        7: "others on the device: process 7 (blender); others on the device: process 9",
        8: "others on the device: process 9",
    }
