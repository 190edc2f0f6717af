"""From a trace to seconds by kind: traces made by hand, as torch writes them, and one that torch wrote."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from efficientbench.basics.errors import MetricsError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import MeasurementConfig
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.profiling import trace
from efficientbench.profiling.profile import bounds, largest_gap
from efficientbench.profiling.trace import OPTIMIZER, STEP, Breakdown, break_down, common, read_trace, union, without
from efficientbench.worker.listeners.profiler import Profiler


def event(name: str, begin: float, end: float, cat: str = "cpu_op", tid: Any = 1, number: int | None = None) -> dict:
    args = {} if number is None else {"External id": number}
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin, "tid": tid, "args": args}


def step(begin: float, end: float) -> dict:
    return event(STEP, begin, end, "user_annotation")


def test_intervals() -> None:
    assert union([(5, 6), (0, 2), (1, 3)]) == [(0, 3), (5, 6)]
    assert common([(0, 3), (5, 9)], [(2, 6), (8, 10)]) == [(2, 3), (5, 6), (8, 9)]
    assert without((0, 10), [(2, 3), (1, 4), (9, 12)]) == [(0, 1), (4, 9)]


def test_operations_count_without_those_that_they_call() -> None:
    found = break_down(
        [
            step(0, 1000),
            event("aten::linear", 100, 300),
            event("aten::mm", 150, 280),
            event("autograd::engine::evaluate_function: LinearCrossEntropyBackward", 300, 500),
            event("aten::mm", 320, 420),
            event("FormulaRMSNorm", 500, 560),
            event("aten::mul", 510, 550),
            event(OPTIMIZER, 600, 800, "user_annotation"),
            event("aten::_fused_adamw_", 650, 750),
            event("aten::silu", 800, 810),
            event("mkldnn::_linear_pointwise", 810, 830),
            # Another thread's operations are none of the step's, but for what a collective takes there.
            event("aten::mm", 0, 1000, tid=2),
            event("gloo:all_reduce", 840, 940, tid=3),
            # Before and after the step.
            event("aten::mm", -50, 0),
            event("aten::mm", 1000, 1100),
        ]
    )
    assert (found.steps, found.on_device) == (1, False)
    micro = {kind: round(time_s * 1e6) for kind, time_s in found.seconds.items()}
    assert micro == {
        "matmuls": 220,
        "attention": 0,
        "norms": 60,
        "loss": 200,
        "optimizer": 100,
        "other": 10,
        "communication": 100,
        "idle": 310,
    }
    assert sum(micro.values()) == round(found.step_time_s * 1e6)


def test_operations_that_a_variant_declares_are_attention() -> None:
    events = [step(0, 100), event("GatedDeltaRuleBackward", 10, 60), event("aten::bmm", 20, 50)]
    spent = {"attention": 50e-6, "idle": 50e-6}
    found = break_down(events, ("GatedDelta",)).seconds
    assert {kind: time_s for kind, time_s in found.items() if time_s} == pytest.approx(spent)
    assert break_down(events).seconds["matmuls"] == pytest.approx(30e-6)


def test_kernels_have_the_kind_of_what_started_them() -> None:
    """As kineto writes it for CUDA: a kernel carries the number of the operation that launched it, and runs later."""
    found = break_down(
        [
            step(0, 500),
            step(500, 1000),
            event("autograd::engine::evaluate_function: ScaledDotProductFlashAttentionBackward0", 10, 30, tid=9),
            event("aten::_scaled_dot_product_flash_attention_backward", 12, 28, tid=9, number=7),
            event("aten::mm", 30, 40, number=8),
            event("LinearCrossEntropy", 40, 60, number=9),
            event("aten::mm", 45, 50, number=10),
            event("flash_bwd_kernel", 100, 300, "kernel", tid=7, number=7),
            event("sm90_gemm", 300, 400, "kernel", tid=7, number=8),
            event("sm90_gemm", 600, 700, "kernel", tid=7, number=10),
            # On a stream of its own: half of it behind the product.
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 350, 450, "kernel", tid=20, number=11),
            event("Memcpy DtoH (Device -> Pinned)", 700, 720, "gpu_memcpy", tid=7, number=12),
        ]
    )
    assert (found.steps, found.on_device) == (2, True)
    micro = {kind: round(2 * time_s * 1e6) for kind, time_s in found.seconds.items() if time_s}
    assert micro == {"attention": 200, "matmuls": 100, "loss": 100, "communication": 50, "other": 20, "idle": 530}


def test_torchs_own_trace_adds_up(tmp_path: Path) -> None:
    import torch
    from torch.profiler import profile, record_function

    from efficientbench.model.kernels.norm import rms_norm

    x = torch.randn(256, 256, requires_grad=True)
    with profile() as profiler:
        for _ in range(2):
            with record_function(STEP):
                hidden = rms_norm(x @ x, torch.ones(256), 1e-6)
                heads = hidden.view(1, 4, 256, 64)
                torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).sum().backward()
                with record_function(OPTIMIZER):
                    x.data.mul_(0.9)
    path = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    found = break_down(read_trace(path))
    assert found.steps == 2
    for kind in ("matmuls", "attention", "norms", "optimizer", "idle"):
        assert found.seconds[kind] > 0, kind
    assert found.seconds["loss"] == found.seconds["communication"] == 0
    assert sum(found.seconds.values()) == pytest.approx(found.step_time_s, rel=1e-6)


def test_a_run_that_traces_nothing_has_no_profiler(tmp_path: Path) -> None:
    assert Profiler.of(MeasurementConfig(), 10, tmp_path) is None
    profiler = Profiler.of(MeasurementConfig(profile_steps=3), 10, tmp_path)
    assert profiler is not None
    assert (profiler.first, profiler.last) == (8, 10)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1", gzip.compress(b'{"traceEvents": 1}', mtime=0)[:10]])
def test_a_damaged_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / ("trace.json.gz" if content[:1] == b"\x1f" else "trace.json")
    path.write_bytes(content)
    with pytest.raises(MetricsError, match="is no trace of torch.profiler"):
        read_trace(path)


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("aten::mm", 0, 1)]}))
    with pytest.raises(MetricsError, match="holds no 'training step'"):
        break_down(read_trace(path))


def test_the_largest_gap_is_to_the_roofline() -> None:
    config = resolve("gqa_1.5B", overrides=("training.micro_batch_size=1", "training.global_batch_size=1"))
    layout = Layout.of(config, devices=1)
    seconds = {"matmuls": 0.05, "attention": 0.01, "norms": 0.02, "loss": 0.01, "optimizer": 0.02, "other": 0.01}
    breakdown = Breakdown(1, 0.15, {**seconds, "communication": 0.0, "idle": 0.02}, on_device=True)
    found = bounds(config, layout, device_rates("H100 SXM", "bf16"))
    # 6 FLOPs a token for each weight of a matrix product, at the peak.
    weights = 1_543_714_304 - 151_936 * 1536 - 28 * 2048 - 57 * 1536
    assert found["matmuls"].bound_s == pytest.approx(6 * 2048 * weights / 989.5e12, rel=1e-6)
    assert set(found) == set(seconds)
    kind, gap_s = largest_gap(found, breakdown)
    assert kind == "matmuls"
    assert gap_s == pytest.approx(0.05 - found["matmuls"].bound_s)
    slow = Breakdown(1, 0.15, {**seconds, "communication": 0.0, "idle": 0.2}, on_device=True)
    assert largest_gap(found, slow) == ("idle", 0.2)


def test_a_trace_that_unpacks_to_more_than_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_BYTES", 1000)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [], "filler": " " * 1000}).encode()))
    with pytest.raises(MetricsError, match=r"trace\.json\.gz is no trace .* unpacks to more than 1,000 bytes"):
        read_trace(path)
    path.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    assert read_trace(path) == []
