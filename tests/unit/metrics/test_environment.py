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


def test_versions_and_absent_packages() -> None:
    environment = collect_environment(["pydantic", "no-such-package"])
    assert environment["packages"] == {"pydantic": version("pydantic"), "no-such-package": None}
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["processor"]
    assert environment["commit"] is None
    assert environment["uncommitted_changes"] is None
    assert json.loads(json.dumps(environment)) == environment


def test_the_commit_and_whether_the_tree_differs_from_it(tmp_path: Path) -> None:
    assert collect_environment([], tmp_path)["commit"] is None  # no working tree
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
    entries = sensor_states([fine, slow, dead])
    assert [entry["ranks"] for entry in entries] == [2, 1]
    assert entries[0]["sample_interval_s"] == 0.4
    assert entries[0]["unavailable"] == {"energy_j": "too old"}
    assert (entries[1]["failure"], entries[1]["sample_interval_s"]) == ("nvml: GPU is lost", None)
    assert json.loads(json.dumps(entries)) == entries
