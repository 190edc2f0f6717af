"""Collects where a run happens: interpreter, packages, commit, host, sensors."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from efficientbench.basics.cgroup import memory_limit_bytes, usable_cores
from efficientbench.basics.files import text_at
from efficientbench.metrics.monitoring.measurement import SensorState
from efficientbench.metrics.sensors.host import processor_name


def collect_environment(packages: Sequence[str], repository: Path) -> dict[str, Any]:
    """Return the facts that a reader needs to judge or repeat a run.

    Args:
        packages: distributions whose versions to record; None stands for one that is not installed.
        repository: a folder of the working tree whose commit to record.

    Returns:
        python, platform, hostname, processor, cores, memory_limit_bytes, packages, commit (None outside a git
        working tree), uncommitted_changes, nvidia_driver (None without one).
    """
    commit = _git(repository, "rev-parse", "HEAD")
    changes = _git(repository, "status", "--porcelain", "--untracked-files=no")
    driver = text_at(Path("/proc/driver/nvidia/version"))
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "processor": processor_name(),
        "cores": usable_cores(),
        "memory_limit_bytes": memory_limit_bytes(),
        "packages": {name: version_of(name) for name in packages},
        "commit": commit,
        "uncommitted_changes": None if commit is None or changes is None else bool(changes),
        "nvidia_driver": driver.partition("\n")[0].partition(":")[2].strip() or None,
    }


def sensor_states(states: Iterable[SensorState]) -> list[dict[str, Any]]:
    """Return what each sensor of a run measured, and why not the rest; ranks with equal sensors share an entry.

    Returns:
        For each: name, scope, failure, measures, unavailable (field → reason), source (the class, of a meter alone),
        ranks (how many have such a sensor), sample_interval_s (the longest that was achieved among them; None where
        none took two samples).
    """
    entries: dict[str, dict[str, Any]] = {}
    for state in states:
        entry: dict[str, Any] = {"name": state.name, "scope": state.scope, "failure": state.failure}
        entry |= {"measures": list(state.measures), "unavailable": state.unavailable}
        entry |= {"source": state.source} if state.source else {}
        same = entries.setdefault(repr(entry), {**entry, "ranks": 0, "sample_interval_s": None})
        same["ranks"] += 1
        same["sample_interval_s"] = max(same["sample_interval_s"] or 0.0, state.sample_interval_s or 0.0) or None
    return list(entries.values())


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(repository: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
