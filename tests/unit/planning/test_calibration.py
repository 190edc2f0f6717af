"""Projections by measured rates: what they take from a calibration, and where they say so."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from support.repository import ROOT

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.cli.launch import Starter, launch
from efficientbench.cli.launch_script import Machines, named_runs
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import micro_batch_transfers, step_transfers
from efficientbench.costs.compute import micro_batch_work, optimizer_work
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.planning.basis import ERROR, Basis, basis, find_calibration
from efficientbench.planning.calibration import Calibration, Point, place, read_calibration, time_at, write_calibration
from efficientbench.planning.plan import plan_anywhere
from efficientbench.planning.step_time import project, shared_pipeline_s
from efficientbench.sweep.estimate import estimate
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request

CONDITIONS = {"device": "a CPU", "type": "cpu", "torch": metadata.version("torch")}
FLOPS, MEMORY = 1e11, 1e10
SENT_S = {"all-reduce": 2e-3, "all-gather": 1e-3, "reduce-scatter": 3e-3, "all-to-all": 5e-3, "send": 4e-3}


def point(work: str, size: float, time_s: float, at_once: int = 1, dtype: str = "", ranks: int = 1) -> Point:
    return Point(work, size, at_once, time_s, 0.9 * time_s, 1.2 * time_s, dtype, ranks)


def calibration(ranks: int = 1, slower: float = 1.0, **changes: object) -> Calibration:
    """Rates that no size changes; with `ranks` at once they are `slower` times as slow. A send takes its latency."""
    points = []
    for at_once in sorted({1, ranks}):
        factor = 1.0 if at_once == 1 else slower
        points += [point(work, 1.0, factor / FLOPS, at_once, "fp32") for work in ("matmul", "attention")]
        points.append(point("memory", 1.0, factor / MEMORY, at_once))
    for operation, time_s in SENT_S.items() if ranks > 1 else ():
        # As long for any size: only calls count.
        points += [point(operation, size, time_s, ranks, ranks=2) for size in (1.0, 1e12)]
    made = Calibration(CONDITIONS, "2026-01-02T03:04:05+00:00", "gqa_0.5B, tp 2", 5, tuple(points), {})
    return replace(made, **changes)  # type: ignore[arg-type]


def kept(folder: Path, made: Calibration) -> Path:
    write_calibration(path := place(folder, made.conditions), made)
    return path


def laid_out(folder: Path, *overrides: str, name: str = "gqa_0.5B") -> tuple[RunConfig, Layout]:
    keys = ["model.layers=4", "training.dtype=fp32", "parallel.overlap=false", f"data.cache={folder}", *overrides]
    config = resolve(name, True, keys)
    return config, Layout.of(config, devices=1, oversubscribe=True)


def step_s(config: RunConfig, layout: Layout) -> tuple[float, Basis]:
    found = basis("cpu", config, layout.world_size)
    return project(config, layout, found.rates, found.reached.efficiency).step_time_s, found


def test_times_lie_on_lines_of_the_logarithms_and_go_on_at_the_ends() -> None:
    points = [point("matmul", 100.0, 10.0), point("matmul", 1.0, 1.0), point("matmul", 1e4, 1000.0)]
    assert [time_at(points, size) for size in (1e-3, 1.0, 100.0, 1e4)] == pytest.approx([1.0, 1.0, 10.0, 1000.0])
    assert time_at(points, 10.0) == pytest.approx(math.sqrt(10.0))
    assert time_at(points, 1e3) == pytest.approx(100.0)
    # The rate of the largest: 10 a second.
    assert time_at(points, 1e6) == pytest.approx(1e5)


def test_one_rank_takes_its_work_at_the_measured_rates(tmp_path: Path) -> None:
    kept(tmp_path, calibration())
    config, layout = laid_out(tmp_path)
    works = list(micro_batch_work(config, layout, 0).values()) * layout.micro_batches
    works.append(optimizer_work(config, layout, 0))
    expected = sum(max(each.flops / FLOPS, each.moved_bytes / MEMORY) for work in works for each in work)
    found_s, found = step_s(config, layout)
    assert found_s == pytest.approx(expected)
    assert found.rates.name == "a CPU"
    # What the run's own step took longer than its projection, all others take.
    kept(tmp_path, calibration(step_s=(1.0, 0.9, 1.1), step_ratio=1.25))
    assert step_s(config, layout)[0] == pytest.approx(1.25 * expected)


@pytest.mark.parametrize("name", ["gdn_3to1_1.5B", "mamba2_1.5B"])
def test_layers_of_several_kinds_and_recurrent_ones_take_the_measured_rates(tmp_path: Path, name: str) -> None:
    kept(tmp_path, calibration())
    config, layout = laid_out(tmp_path, name=name)
    found_s, _ = step_s(config, layout)
    kept(tmp_path, calibration(step_ratio=2.0))
    assert step_s(config, layout)[0] == pytest.approx(2 * found_s)


def test_transfers_take_the_time_of_their_calls(tmp_path: Path) -> None:
    kept(tmp_path, calibration(ranks=2))
    config, layout = laid_out(tmp_path, "parallel.tp=2", "parallel.dp=1")
    sent = {each.purpose: each for each in micro_batch_transfers(config, layout, 0)}
    activations = sent["tensor parallelism: activations"]
    # A layer sums its attention's and its network's outputs, and the gradients of both inputs; then there are the
    # embedding and the gradient of the output projection's input.
    assert activations.calls == 4 * 4 + 2
    found = basis("cpu", config, 2)
    projection = project(config, layout, found.rates, found.reached.efficiency)
    once = [each for each in step_transfers(config, layout, 0) if each.purpose == activations.purpose]
    assert once == []
    expected = layout.micro_batches * 18 * SENT_S["all-reduce"]
    assert projection.communication_s[activations.purpose] == pytest.approx(expected)


def test_a_pipeline_on_a_shared_host_fills_and_drains_faster(tmp_path: Path) -> None:
    """Ranks that each take twice as long beside the other take as long as on one rank, but while they send."""
    kept(tmp_path, calibration(ranks=2, slower=2.0))
    config, layout = laid_out(tmp_path, "parallel.pp=2", "parallel.dp=1")
    found = basis("cpu", config, 2)
    projection = project(config, layout, found.rates, found.reached.efficiency)
    stages = [
        sum(max(part.flops / FLOPS, part.moved_bytes / MEMORY) for works in work.values() for part in works)
        for work in (micro_batch_work(config, layout, stage) for stage in range(2))
    ]
    assert layout.micro_batches > 1
    slowest, other = max(stages) + SENT_S["send"], min(stages) + SENT_S["send"]
    once_s = projection.compute_s["optimizer"] + sum(
        time_s for purpose, time_s in projection.communication_s.items() if purpose != "pipeline: activations"
    )
    assert projection.bubble_s == pytest.approx(layout.micro_batches * other)
    assert projection.step_time_s - once_s == pytest.approx(layout.micro_batches * (slowest + other))


def test_stages_that_share_cores_take_their_work_over_the_cores() -> None:
    equal, uneven = [1.0] * 4, [3.0, 1.0, 1.0, 2.0]
    # As many cores as stages: the bubble is Narayanan's, (p − 1) micro-batches.
    assert shared_pipeline_s(equal, 8, [1.0] * 4) == pytest.approx(8 + 3)
    # One core never waits.
    assert shared_pipeline_s(uneven, 5, [1.0, 2.0, 3.0, 4.0]) == pytest.approx(5 * sum(uneven))
    # Two cores wait for the slowest stage, and for the pipeline to fill and drain.
    assert 8 * 4 / 2 < shared_pipeline_s(equal, 8, [1.0, 1.0, 1.5, 2.0]) < 2 * (8 + 3)
    assert shared_pipeline_s([1.0, 2.0], 1, [1.0, 9.0]) == pytest.approx(3.0)


def test_more_ranks_than_were_measured_are_refused_where_nothing_was_sent(tmp_path: Path) -> None:
    path = kept(tmp_path, calibration())
    config, _ = laid_out(tmp_path)
    assert basis("a CPU", config, 1).rates.peak_flops == pytest.approx(FLOPS)
    with pytest.raises(MetricsError, match=f"{path}: one rank alone was measured, and the run has 2: "):
        basis("a CPU", config, 2)


def test_a_sweep_assumes_a_cores_rate_where_its_ranks_are_not_calibrated(tmp_path: Path) -> None:
    kept(tmp_path, calibration())
    here = Machine("cpu", "a CPU", ("0",), None, 0, None)
    one, two = (estimate(plan_anywhere(laid_out(tmp_path, f"parallel.dp={dp}")[0]), here, [], 1) for dp in (1, 2))
    assert "projected from the rates of a CPU, calibrated" in one.time_source
    assert "a core assumed" in two.time_source
    assert two.time_s is not None


def test_a_device_of_the_table_keeps_its_peak_and_takes_the_measured_rate(tmp_path: Path) -> None:
    conditions = CONDITIONS | {"device": "NVIDIA H100 80GB HBM3", "type": "cuda"}
    path = kept(tmp_path, calibration(conditions=conditions))
    config, layout = laid_out(tmp_path)
    found = basis("H100 SXM", config, layout.world_size)
    assert found.rates == device_rates("H100 SXM", "fp32")
    shares = found.reached.efficiency.at(config, layout, 1)
    assert shares.matmul == pytest.approx(FLOPS / found.rates.peak_flops)
    assert str(path) in found.assumptions[0]
    assert "2026-01-02T03:04:05+00:00" in found.assumptions[0]
    assert "; by the table 450 GB/s in a node" in found.assumptions[0]


def test_a_network_that_the_table_lacks_is_taken_from_what_nodes_sent(tmp_path: Path) -> None:
    conditions = CONDITIONS | {"device": "NVIDIA L40S", "type": "cuda"}
    points = calibration(ranks=2).points
    far = [replace(each, far=True, at_once=1) for each in points if each.ranks > 1]
    kept(tmp_path, calibration(conditions=conditions, points=(*points, *far)))
    config, _ = laid_out(tmp_path, "parallel.dp=2")
    layout = Layout.of(config, devices=1, nodes=2)
    assert device_rates("L40S", "fp32").between_nodes_bytes_s is None
    found = basis("L40S", config, layout.world_size)
    assert found.rates.between_nodes_bytes_s == pytest.approx(max(each.rate for each in far))
    projection = project(config, layout, found.rates, found.reached.efficiency)
    # Gradients and weights between two nodes: a call of each takes what was measured.
    assert sum(projection.communication_s.values()) > 0


def test_the_newest_calibration_of_the_installed_torch_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def found() -> str:
        taken = find_calibration("a CPU", tmp_path, "fp32")
        assert taken is not None
        return f"{taken.calibration.run} {taken.torch}"

    old = calibration(
        conditions=CONDITIONS | {"torch": "1.0"}, measured_at="2027-01-01T00:00:00+00:00", run="old torch"
    )
    kept(tmp_path, old)
    assert found() == "old torch 1.0"
    kept(tmp_path, calibration(run="ours"))
    kept(
        tmp_path, calibration(run="later", conditions=CONDITIONS | {"x": "1"}, measured_at="2026-05-01T00:00:00+00:00")
    )
    assert found() == f"later {CONDITIONS['torch']}"
    assert find_calibration("a CPU", tmp_path, "bf16") is None
    assert find_calibration("another", tmp_path, "fp32") is None
    (tmp_path / "calibration_0.json").write_text("{}")
    assert found() == f"later {CONDITIONS['torch']}"
    assert "calibration_0.json: holds no calibration" in caplog.text


def test_a_damaged_calibration_is_named(tmp_path: Path) -> None:
    path = kept(tmp_path, calibration())
    assert read_calibration(path) == calibration()
    path.write_text(path.read_text().replace('"time_s": ', '"time_s": -'))
    with pytest.raises(MetricsError, match=f"{path}: holds no calibration .*run `efficientbench calibrate` again"):
        read_calibration(path)


def test_a_range_has_the_spread_and_what_rates_leave_out(tmp_path: Path) -> None:
    kept(tmp_path, calibration())
    found = basis("cpu", laid_out(tmp_path)[0], 1).reached
    low, high = 0.9 * (1 - ERROR), 1.2 * (1 + ERROR)
    assert found.tokens_range(1000.0).startswith(f"{1000 / high:,.0f} to {1000 / low:,.0f} tokens/s a device; ")
    assert found.time_range.startswith(f"a step takes {low:.2f} to {high:.2f} times as long, by {tmp_path}")


def test_no_layout_that_was_measured_was_off_by_more_than_the_range_assumes() -> None:
    text = (ROOT / "docs" / "measured" / "projected_step_time.json").read_text(encoding="utf-8")
    figures = {key: each for key, each in json.loads(text)["figures"].items() if key != "inside"}
    slowed = {key: figures.pop(key)["value"] for key in list(figures) if key.startswith("slowed")}
    off = {key: abs(each["value"] - 1) for key, each in figures.items()}
    assert off
    assert max(off.values()) <= ERROR, off
    # A step's time over the end of its range: what was slowed lies outside.
    assert all(ratio > 1 for ratio in slowed.values()), slowed


def test_a_launch_says_by_which_calibration_its_budget_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bf16 = [replace(each, dtype=each.dtype and "bf16") for each in calibration().points]
    conditions = CONDITIONS | {"device": "NVIDIA H100 80GB HBM3", "type": "cuda"}
    path = kept(tmp_path, calibration(conditions=conditions, points=tuple(bf16)))
    launch("gqa_0.5B", [f"data.cache={tmp_path}"], to=Starter.SLURM, device="H100 SXM")
    said = capsys.readouterr().err
    assert f"times as long, by {path} (gqa_0.5B, tp 2, 2026-01-02" in said
    assert "published runs" not in said


def test_a_script_of_the_preflight_alone_trains_nothing() -> None:
    request, machines = Request(overrides=("parallel.tp=2",)), Machines(2, 8)
    (run,) = named_runs(request, machines, "gqa_0.5B", preflight=True)
    assert (run.command, run.arguments) == ("calibrate", ["gqa_0.5B", "dlc", "parallel.tp=2", "--preflight"])
    with pytest.raises(ConfigError, match="a fine-tuning has none"):
        named_runs(request, machines, "lora_7B", preflight=True)
