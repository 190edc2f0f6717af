"""Reads the memory and cores that this process may use: a container's limits, not the machine's (cgroup v1 and v2)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from efficientbench.basics.files import text_at

_ROOT = Path("/")
# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63; anything of that order is no limit.
_UNLIMITED = 1 << 60


def memory_limit_bytes(root: Path = _ROOT) -> int:
    """Return the memory that this process may use, bytes: the machine's, or the lowest limit of a cgroup around it."""
    limits = [psutil.virtual_memory().total]
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = text_at(folder / name)
            if text.isdigit() and int(text) < _UNLIMITED:
                limits.append(int(text))
    return min(limits)


def usable_cores(pids: Sequence[int] = (0,), root: Path = _ROOT) -> float:
    """Return how many cores processes may keep busy together: the cores of their affinity, or a lower CPU quota.

    `pids`: the processes, 0 for this one; all are assumed to be in this process's cgroup.
    """
    cores = float(len(set().union(*(os.sched_getaffinity(pid) for pid in pids))))
    for folder in _folders(root, "cpu"):
        quota, _, period = text_at(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = text_at(folder / "cpu.cfs_quota_us"), text_at(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, int(quota) / int(period))
    return cores


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's folders of a controller, innermost first, in cgroup v1 and v2."""
    for line in text_at(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        # Inside a container the path may name a folder that only the host sees: then the mount itself is ours.
        folder = mount / path.lstrip("/")
        while folder != mount and mount in folder.parents:
            yield folder
            folder = folder.parent
        yield mount
