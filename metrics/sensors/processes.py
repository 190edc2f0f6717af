"""Whose the processes on an accelerator are."""

from __future__ import annotations

from collections.abc import Collection

import psutil

from efficientbench.metrics.sensors.base import Foreign


def foreign_processes(listed: Collection[int], own: Collection[int]) -> Foreign | None:
    """Those of the listed processes that are neither the run's nor started by it.

    None also where none of the run's own is listed: they have no context on the device yet, or the driver counts
    process ids as the machine does whose container we are in, so that nobody can tell whose they are.
    """
    others = sorted(pid for pid in listed if not _is_ours(pid, own))
    if not others or len(others) == len(listed):
        return None
    return Foreign(f"on the device too: {', '.join(map(_called, others))}")


def _is_ours(pid: int, own: Collection[int]) -> bool:
    if pid in own:
        return True
    try:
        return any(parent.pid in own for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _called(pid: int) -> str:
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"process {pid}"
