"""The script that finds regressions of our own steps: planted ones, and the rows that it keeps."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats
from support.repository import ROOT

from efficientbench.metrics.formulas.ratio import Side, make_ratio


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("step_times", ROOT / "tests" / "benchmarks" / "step_times.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("factor", "allowed", "slower"), [(1.0, 0.0, False), (1.1, 0.0, True), (1.1, 0.2, False), (0.9, 0.0, False)]
)
def test_a_planted_slowdown_is_found(script: ModuleType, factor: float, allowed: float, slower: bool) -> None:
    before = [0.100, 0.101, 0.099, 0.1005, 0.0995]
    ratio = make_ratio("step time", Side.of(before), Side.of([each * factor for each in before]))
    assert script.is_slower(ratio, allowed) is slower
    assert f"ratio {factor:.3f} (95 % " in script.described(ratio)


def test_a_row_has_students_interval_of_log_times(script: ModuleType) -> None:
    times_s = [0.100, 0.110, 0.105]
    logs = np.log(times_s)
    low, high = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    found = script.row("gqa_0.5B", "abc", times_s)
    assert found["step, ms"] == f"{np.exp(logs.mean()) * 1e3:.1f}"
    assert found["95 %"] == f"{np.exp(low) * 1e3:.1f} to {np.exp(high) * 1e3:.1f}"


def test_a_commit_measured_again_replaces_its_row_and_the_newest_stay(script: ModuleType) -> None:
    def row(commit: int, time: str) -> dict[str, str]:
        return {"run": "gqa_0.5B", "machine": "m", "commit": str(commit), "step, ms": time}

    kept = [row(number, "1.0") for number in range(script.MOST_ROWS)]
    found = script.joined(kept, [row(5, "2.0"), row(100, "3.0")])
    assert len(found) == script.MOST_ROWS
    assert [each["commit"] for each in found][:2] == ["1", "2"]
    assert (found[4]["step, ms"], found[-1]["commit"]) == ("2.0", "100")


def test_every_file_of_the_measured_commit_exists(script: ModuleType, tmp_path: Path) -> None:
    tree = script.checked_out("HEAD", tmp_path)
    assert (tree / "efficientbench" / "metrics" / "formulas" / "ratio.py").is_file()
    assert (tree / "tests" / "support" / "training_steps.py").is_file()
