"""Cost to a quality: the curve by hand, and the cost to a loss against a power law whose answer is known."""

from __future__ import annotations

import dataclasses

import pytest
from support.metrics_parts import HandClock, TraceSensor, make_record, measure_steps, monitor_of, run_steps

from efficientbench.metrics import MetricsError, merge
from efficientbench.metrics.analysis.quality import cost_to_loss, lowest_common_loss
from efficientbench.metrics.records.facts import Validation
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import QualityPoint
from efficientbench.metrics.records.summarize import quality_curve


def power_law(tokens: int) -> float:
    return 2.0 + 3.0 * (tokens / 1000) ** -0.5


def run_of(*tokens: int, watts: float | None = 50.0, warmup: int = 1000, loss_se: float = 0.1) -> RunRecord:
    """1,000 tokens/s without warm-up; every validation is one of `tokens`."""
    points = [
        QualityPoint(
            step=count // 100,
            tokens=count,
            loss=power_law(count),
            loss_se=loss_se,
            loss_se_values=4,
            measured_tokens=count - warmup,
            train_s=(count - warmup) / 1000,
            energy_j=None if watts is None else watts * (count - warmup) / 1000,
        )
        for count in tokens
    ]
    figures = {"tokens": tokens[-1] - warmup, "steps_measured": (tokens[-1] - warmup) // 100, "al_s": 0.1}
    energy = {} if watts is None else {"energy_j_per_token": watts / 1000}
    return make_record({**figures, **energy, "quality_curve": points})


@pytest.mark.parametrize("energy", ["counter", "power"])
def test_the_curve_holds_only_the_cost_of_training(energy: str) -> None:
    clock = HandClock(0)

    def joules(t: float) -> float:
        # 100 W in steps, nothing else; a warm-up of 5 s, then steps of 2 and 2, 2 and 5 s between pauses.
        return sum(100 * max(min(t, end) - begin, 0) for begin, end in ((0, 9), (30, 32), (60, 65)))

    sensor = TraceSensor(clock, power=lambda t: 100.0, energy=joules if energy == "counter" else None)
    closed = []
    with monitor_of(clock, sensor, warmup_steps=1) as monitor:
        for duration_s, pause_s in ((5, 0), (2, 0), (2, 21), (2, 28), (5, 0)):
            run_steps(monitor, clock, duration_s, readings=16)
            if pause_s:
                with monitor.paused():
                    closed.append(monitor.closed_windows())
                    clock.pass_time(pause_s)
        monitor.pause()
        closed.append(monitor.closed_windows())
        monitor.resume()
    assert closed == [1, 2, 3]
    run = merge([monitor.finish()])
    assert run.window_energy_j == pytest.approx((400, 200, 500))
    validations = [
        Validation(step, 100 * step, 100 * (step - 1), 5.0 - step, 0.1, windows)
        for step, windows in ((3, 1), (4, 2), (5, 3))
    ]
    curve = quality_curve(run, validations)
    found = [(point.train_s, point.energy_j, point.measured_tokens) for point in curve]
    assert found == [(4, pytest.approx(400), 200), (6, pytest.approx(600), 300), (11, pytest.approx(1100), 400)]
    assert curve[-1].energy_j == pytest.approx(run.energy_j)


def test_the_curve_lacks_energy_without_a_meter_and_loss_without_a_number() -> None:
    clock = HandClock(0)
    run = measure_steps(clock, TraceSensor(clock), times_s=[2])
    validation = Validation(1, 100, 100, float("nan"), float("nan"), 0)  # a run that diverged
    (point,) = quality_curve(run, [validation])
    assert (point.energy_j, point.loss, point.loss_se, point.train_s) == (None, None, None, 2)
    (point,) = quality_curve(dataclasses.replace(run, energy_j=5.0), [dataclasses.replace(validation, windows=1)])
    assert point.energy_j is None


def test_the_cost_to_a_loss_matches_a_power_law() -> None:
    record = run_of(*range(2000, 40_001, 2000))
    target = power_law(13_000)
    cost = cost_to_loss(record, target)
    # 1,000 tokens/s and 50 W, the 1,000 tokens of warm-up charged like the others.
    assert dataclasses.astuple(cost) == pytest.approx((13_000, 13.0, 650), rel=2e-3)
    assert cost_to_loss(run_of(2000, 40_000, watts=None), target).energy_j is None


def test_a_loss_measured_at_a_validation_costs_the_tokens_of_that_validation() -> None:
    for tokens in (2000, 4000):
        assert cost_to_loss(run_of(2000, 4000, 8000), power_law(tokens)).tokens == tokens


def test_the_standard_error_of_the_loss_widens_the_cost() -> None:
    record = run_of(*range(2000, 40_001, 2000), loss_se=0.05)
    cheap, dear = (cost_to_loss(record, power_law(13_000), end).tokens for end in (-1, 1))
    # Four batches: Student's 3.18 standard errors.
    expected = [1000 * ((power_law(13_000) - 2 + side) / 3) ** -2 for side in (0.1591, -0.1591)]
    assert [cheap, dear] == pytest.approx(expected, rel=5e-3)


def test_a_loss_out_of_reach_is_refused() -> None:
    record = run_of(2000, 4000)
    with pytest.raises(MetricsError, match="did not get to a validation loss of 2.1: its best is 3.5"):
        cost_to_loss(record, 2.1)
    with pytest.raises(MetricsError, match="was below a validation loss of 5 at its first validation, after 2,000"):
        cost_to_loss(record, 5.0)
    for tuned, key in (({}, "validate_every_tokens"), ({"method": "lora"}, "validate_every_steps")):
        with pytest.raises(MetricsError, match=rf"validate more often \(runs: training\.{key}\)"):
            cost_to_loss(record.model_copy(update={"finetuning": tuned}), 5.0)
    with pytest.raises(MetricsError, match="has no validation"):
        cost_to_loss(make_record(), 5.0)


def test_the_lowest_common_loss_is_one_that_every_run_reached() -> None:
    assert lowest_common_loss([run_of(2000, 4000), run_of(2000, 9000)]) == power_law(4000)
