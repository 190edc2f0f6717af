"""What `calibrate` keeps, and what it takes of the calibration that it replaces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.planning.calibration import Calibration, Point, read_calibration, write_calibration
from efficientbench.running.calibrate import CalibrationJob, _earlier, _finished, _projected_s


def job(folder: Path, *overrides: str) -> CalibrationJob:
    config = resolve("gqa_0.5B", True, [f"data.cache={folder}", *overrides])
    layout = Layout.of(config, devices=1, oversubscribe=True)
    return CalibrationJob(
        config, layout, plan_budget(config, None), (), folder, conditions={"device": "a", "type": "cpu", "torch": "2"}
    )


def write_rates(asked: CalibrationJob, dtype: str, sends: bool) -> None:
    """Write a calibration whose work was measured in one dtype, by ranks that sent each other something or by one."""
    points = [Point(work, 1e6, 1, 1.0, 0.9, 1.2, dtype) for work in ("matmul", "attention")]
    points.append(Point("memory", 1e6, 1, 1.0, 0.9, 1.2))
    points += [Point("all-reduce", 1e6, 2, 1.0, 0.9, 1.2, ranks=2, group="dp")] if sends else []
    write_calibration(asked.result, Calibration(dict(asked.conditions), "now", "run", 5, tuple(points), {}))


def test_a_calibration_is_kept_once_its_step_is_held_against_its_projection(tmp_path: Path) -> None:
    asked = job(tmp_path, "parallel.dp=1", "training.dtype=fp32")
    write_rates(asked, "fp32", sends=False)
    rates = read_calibration(asked.result)
    asked.result.unlink()
    write_calibration(asked.measured, replace(rates, step_s=(1.0, 0.9, 1.2)))
    assert _earlier(asked) is None
    found = _finished(asked)
    assert found.step_ratio == pytest.approx(1 / _projected_s(rates, asked)[0])
    assert read_calibration(asked.result) == found


def test_a_damaged_calibration_is_replaced(tmp_path: Path) -> None:
    asked = job(tmp_path)
    assert _earlier(asked) is None
    asked.result.write_text("{}")
    assert _earlier(asked) is None


@pytest.mark.parametrize(
    ("dtype", "ranks", "sends", "taken"),
    [("fp32", 1, False, True), ("bf16", 1, False, False), ("fp32", 2, False, False), ("fp32", 2, True, True)],
)
def test_only_a_calibration_that_projects_the_runs_step_is_held_against_it(
    tmp_path: Path, dtype: str, ranks: int, sends: bool, taken: bool
) -> None:
    asked = job(tmp_path, f"parallel.dp={ranks}", "training.dtype=fp32")
    write_rates(asked, dtype, sends)
    assert (_earlier(asked) is not None) == taken
