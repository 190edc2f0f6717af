"""`efficientbench calibrate` on two ranks of this machine, and the plan that takes what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import TINY, efficientbench

from efficientbench.planning.calibration import OPERATIONS, read_calibration

pytestmark = pytest.mark.proof


def test_ranks_measure_what_a_plan_takes(tmp_path: Path) -> None:
    words = ("gqa_1.5B", "--smoke", *TINY, "parallel.dp=2", f"data.cache={tmp_path}", f"output={tmp_path}")
    done = efficientbench("calibrate", *words, "--seconds", "2", expect=0, stderr="")
    (path,) = tmp_path.glob("calibration_*.json")
    assert "host to device: n/a; the device computes in the host's memory" in done.stdout
    assert f"kept for plans of this device, by versions of torch and kernels: {path}" in done.stdout
    found = read_calibration(path)
    assert {each.work for each in found.points} == {"matmul", "attention", "memory", *OPERATIONS}
    assert all(each.least_s <= each.time_s <= each.most_s for each in found.points)
    # Ranks that share the host are measured alone, too; one rank sends nothing.
    assert {each.at_once for each in found.points if each.work == "matmul"} == {1, 2}
    assert {(each.group, each.ranks, each.at_once) for each in found.points if each.group} == {("dp", 2, 2)}
    assert found.step_s is not None
    assert found.step_ratio > 0
    planned = efficientbench("plan", *words, "--world", "2", "--device", "cpu", expect=0).stdout
    ranks = "gqa_1.5B_smoke, dp 2, OMP_NUM_THREADS=1"
    assert f"calibrated: by the rates of {path} ({ranks}, {found.measured_at}, torch " in planned
    assert "times as long, by" in planned.splitlines()[0]
