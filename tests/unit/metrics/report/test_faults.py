"""Faults of a published collector of these metrics, one test each, so that none is made again.

Device 0 alone; a process per sample; no synchronize; warm-up included; tokens of the whole run over the time of its
last steps; tables with a header only; "MoE" runs of a dense model; one to six steps in all.
"""

from __future__ import annotations

import itertools
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from replicas.nvml_replica import Driver, Gpu
from support.metrics_parts import GB, HandClock, TraceSensor, make_record, measure_steps, read_csv

from efficientbench.config.budget import DEFAULT_TOKENS, plan_budget, wanted_tokens
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.costs.model import count_parameters
from efficientbench.metrics import EfficiencyMonitor, HostSensor, NvmlSensor, merge
from efficientbench.metrics.records.facts import Quality, RunFacts
from efficientbench.metrics.records.summarize import summarize
from efficientbench.metrics.report.columns import runs_csv

FACTS = RunFacts(1000, 1000, 1, 6e3, 7e3, 8e3, None, "not part of this test")


def figures(*times_s: float, warmup_steps: int = 0) -> dict[str, Any]:
    """Return the figures of a run of such steps, without a sensor."""
    return summarize(measure_steps(HandClock(), times_s=times_s, warmup_steps=warmup_steps), FACTS, Quality()).values


def test_all_devices_are_measured_not_only_device_0() -> None:
    clock = HandClock()

    class Uneven(TraceSensor):
        def sample(self, time_s: float) -> list:
            return [
                type(s)(s.time_s, s.device, (i + 1) * 10 * GB, 0.25 * (i + 1), 100.0 * (i + 1))
                for i, s in enumerate(super().sample(time_s))
            ]

    run = measure_steps(clock, Uneven(clock, ("A", "B", "C", "D")), readings=32)
    found = run.amu_gb, run.amu_gb_max, run.pcu, run.aec_w, run.power_w_sum
    assert found == pytest.approx((25, 40, 0.625, 250, 1000))


def test_sampling_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    sensors = [NvmlSensor(environment={}, nvml=Driver(Gpu("GPU-a"))), HostSensor()]
    with EfficiencyMonitor(sensors, sample_interval_s=0.01) as monitor, monitor.step(tokens=1):
        time.sleep(0.5)
    devices = monitor.finish().devices
    assert min(min(device.samples.values()) for device in devices) > 1
    assert {device.pcu is None for device in devices} == {False}


def test_a_step_is_timed_to_the_end_of_its_work() -> None:
    clock = HandClock()
    queue_s = [0.0]

    def drain() -> None:
        clock.pass_time(queue_s[0])
        queue_s[0] = 0.0

    with EfficiencyMonitor([], drain, clock=clock) as monitor:
        for _ in range(3):
            with monitor.step(tokens=1):
                queue_s[0] += 0.5
    assert merge([monitor.finish()]).step_times_s == (0.5, 0.5, 0.5)


def test_warm_up_changes_no_figure() -> None:
    slow, even = (figures(first_s, *[0.1] * 11, warmup_steps=2) for first_s in (60, 0.1))
    for name in ("al_s", "al_s_p99", "tokens_per_s", "tt_tokens_per_param_s", "window_s", "tokens"):
        assert slow[name] == pytest.approx(even[name]), name


def test_throughput_does_not_grow_with_the_length_of_a_run() -> None:
    short, long = figures(*[0.1] * 100), figures(*[0.1] * 5000)
    for name in ("tt_tokens_per_param_s", "tokens_per_s", "al_s"):
        assert long[name] == pytest.approx(short[name], rel=1e-6), name


def test_a_report_has_rows_for_runs_that_measured_nothing(tmp_path: Path) -> None:
    records = [make_record({"run": f"run_{i}", "status": "failed"}) for i in range(3)]
    (tmp_path / "report.csv").write_text(runs_csv(records))
    assert [row["run"] for row in read_csv(tmp_path / "report.csv")] == ["run_0", "run_1", "run_2"]


def test_a_run_called_moe_trains_experts() -> None:
    called = [run.name for run in load_matrix().runs if run.name.startswith("moe")]
    assert called
    for name, smoke in itertools.product(called, (False, True)):
        model = resolve(name, smoke).model
        assert model.moe is not None, name
        assert model.moe.experts > model.moe.top_k > 0, name
        found = count_parameters(model)
        assert found.total > found.active, name


def test_every_run_of_the_matrix_has_enough_steps_to_measure() -> None:
    for run, smoke in itertools.product(load_matrix().runs, (False, True)):
        config = resolve(run.name, smoke)
        budget = plan_budget(config, 1)
        assert budget.steps - budget.warmup_steps >= config.measurement.min_steps >= (10 if smoke else 50), run.name
        wanted = wanted_tokens(config.training.tokens or DEFAULT_TOKENS, 1)
        # Tokens are divided by a step's and rounded up: what is wanted is trained on, whatever the batch.
        assert budget.tokens >= wanted or config.training.steps is not None, run.name
