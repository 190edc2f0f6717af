"""The peak that is measured on the spot: products that were made, and nobody's random numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support.metrics_parts import HandClock, TraceSensor, make_record, measure_steps
from torch.profiler import ProfilerActivity, profile

from efficientbench.metrics.monitoring import matmul_peak
from efficientbench.metrics.monitoring.matmul_peak import measured_matmul_flops
from efficientbench.metrics.records.earlier_peaks import why_too_low
from efficientbench.metrics.records.facts import Quality, RunFacts
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.records.summarize import summarize

CPU = torch.device("cpu")
FACTS = RunFacts(1000, 1000, 2, 6e3, 7e3, 8e3, None, "a CPU has no row", measured_peak_flops=3e5)


def test_the_measured_peak_is_the_fastest_of_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, float]] = []
    fastest = matmul_peak._fastest_s

    def noted(size: int, device: torch.device, dtype: torch.dtype) -> float:
        made.append((size, fastest(size, device, dtype)))
        return made[-1][1]

    monkeypatch.setattr(matmul_peak, "_fastest_s", noted)
    assert measured_matmul_flops(CPU, "fp32") == max(2 * size**3 / time_s for size, time_s in made)
    sizes = [size for size, _ in made]
    assert sizes == [512 * 2**step for step in range(len(sizes))]
    # Larger ones follow until one takes long.
    assert made[-1][1] >= 0.005 or made[-1][0] == 8192
    assert all(time_s < 0.005 for _, time_s in made[:-1])


def test_no_cpu_library_exceeds_the_measured_peak_in_float32() -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        measured_matmul_flops(CPU, "fp32")
    names = {event.key for event in profiled.key_averages()}
    assert {"aten::mm", "mkldnn::_linear_pointwise"} <= names


def test_measuring_the_peak_leaves_the_random_state_unchanged() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    measured_matmul_flops(CPU, "bf16")
    assert torch.equal(torch.rand(3), expected)


def test_a_measured_peak_gives_a_separate_mfu_and_leaves_mfu_absent() -> None:
    clock = HandClock(0)
    run = measure_steps(clock, TraceSensor(clock, ("A", "B"), power=lambda t: 200.0), times_s=(1, 2, 3, 4), readings=32)
    summary = summarize(run, FACTS, Quality())
    assert summary.values["mfu"] is None
    assert summary.unavailable["mfu"] == "a CPU has no row"
    assert summary.values["measured_peak_flops"] == 3e5
    # Two devices, ten seconds of steps.
    assert summary.values["mfu_of_measured_peak"] == pytest.approx(6e3 * run.tokens / (10 * 2 * 3e5))
    known = summarize(run, dataclasses.replace(FACTS, peak_flops=1e6, measured_peak_flops=None), Quality())
    assert known.values["mfu_of_measured_peak"] is None
    assert known.unavailable["mfu_of_measured_peak"] == "the peak itself is known"


def test_a_peak_far_below_an_earlier_one_on_the_same_machine_is_not_used(tmp_path: Path) -> None:
    here = {"hostname": "here", "cores": 2}
    earlier = {"measured_peak_flops": 3e11, "devices": 1, "environment": here}
    write_record(make_record(earlier), tmp_path / "gqa" / "seed_1" / "record.json")
    elsewhere = {**earlier, "measured_peak_flops": 9e11, "environment": {"hostname": "elsewhere", "cores": 2}}
    write_record(make_record(elsewhere), tmp_path / "mqa" / "record.json")
    run = make_record(earlier).model_dump()
    for folder in (tmp_path / "mla", tmp_path / "gqa" / "seed_2", tmp_path / "mla" / "seed_1"):
        assert why_too_low(2.9e11, folder, run, here) is None
        assert "reached 2e+11 FLOP/s, and 3e+11 in an earlier run" in (why_too_low(2e11, folder, run, here) or "")
        assert why_too_low(2e11, folder, {**run, "dtype": "fp32"}, here) is None
    clock = HandClock(0)
    measured = measure_steps(clock, TraceSensor(clock, ("A", "B"), power=lambda t: 200.0), readings=32)
    summary = summarize(measured, dataclasses.replace(FACTS, measured_peak_doubt="too low"), Quality())
    for name in ("measured_peak_flops", "mfu_of_measured_peak"):
        assert (summary.values[name], summary.unavailable[name]) == (None, "too low")
