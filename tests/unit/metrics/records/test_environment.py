"""The record's environment, against git, the interpreter and installed packages themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from efficientbench.metrics.monitoring.measurement import SensorState
from efficientbench.metrics.records.environment import collect_environment, sensor_states


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_versions_are_recorded_and_absent_packages_are_none(tmp_path: Path) -> None:
    environment = collect_environment(["pydantic", "no-such-package"], tmp_path)
    assert environment["packages"] == {"pydantic": version("pydantic"), "no-such-package": None}
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["processor"]
    assert (environment["commit"], environment["uncommitted_changes"]) == (None, None)  # no working tree
    assert json.loads(json.dumps(environment)) == environment


def test_the_commit_and_uncommitted_changes_are_recorded(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "One")
    environment = collect_environment([], tmp_path)
    assert environment["commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert environment["uncommitted_changes"] is False
    (tmp_path / "file").write_text("two")
    assert collect_environment([], tmp_path)["uncommitted_changes"] is True


def test_equal_sensors_share_an_entry() -> None:
    fine = SensorState("nvml", "gpu", None, ("power_w",), {"energy_j": "too old"}, 0.1)
    slow = SensorState("nvml", "gpu", None, ("power_w",), {"energy_j": "too old"}, 0.4)
    dead = SensorState("nvml", "gpu", "nvml: GPU is lost", ("power_w",), {"energy_j": "too old"})
    same = {"name": "nvml", "scope": "gpu", "measures": ["power_w"], "unavailable": {"energy_j": "too old"}}
    assert sensor_states([fine, slow, dead]) == [
        {**same, "failure": None, "ranks": 2, "sample_interval_s": 0.4},
        {**same, "failure": "nvml: GPU is lost", "ranks": 1, "sample_interval_s": None},
    ]
