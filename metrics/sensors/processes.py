"""Read the processes of a run on Linux, and distinguish other processes on an accelerator from them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

from efficientbench.metrics.sensors.base import OtherUse

_ENDED = (FileNotFoundError, ProcessLookupError)
"""Errors from reading a file under /proc of a process that has ended."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RunProcess:
    """Reads memory and processor time of one process; a process that has ended is no error, and reads as 0.

    Args:
        process: the process.
        has_pss: whether the kernel reports the proportional set size (PSS); else memory is the resident size.
    """

    def __init__(self, process: psutil.Process, has_pss: bool) -> None:
        self.process = process
        self._has_pss = has_pss
        self._folder = Path(f"/proc/{process.pid}")
        # The clock id that clock_getcpuclockid(3) computes on Linux: the inverted process id, and 2 for run time.
        self._clock = (~process.pid << 3) | 2
        self._statm: int | None = None
        with suppress(*_ENDED):
            self._statm = os.open(self._folder / "statm", os.O_RDONLY)
        self._others_bytes = 0
        self._own_part = 1.0
        self._last_busy_s: float | None = None

    def close(self) -> None:
        """Close the open file."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None

    def read(self) -> tuple[float, float]:
        """Return memory in bytes, and processor seconds since the last call (0 at the first).

        Memory is PSS, estimated from the resident size and from what was shared at the last `update_shared`; before
        the first update, it is the resident size. Processor time is the process's own, without its children's.
        """
        # Cheap, since a training step waits for every microsecond of it: no PSS, which walks all page tables.
        anonymous_bytes, mapped_bytes = self._resident_bytes()
        last_s = self._last_busy_s
        try:
            # To the nanosecond; /proc counts in ticks of 10 ms.
            self._last_busy_s = time.clock_gettime(self._clock)
        except OSError:  # the process has ended, or belongs to another user
            last_s = None
        spent_s = 0.0 if last_s is None or self._last_busy_s is None else max(self._last_busy_s - last_s, 0.0)
        return max(anonymous_bytes - self._others_bytes, 0) + mapped_bytes * self._own_part, spent_s

    def update_shared(self) -> None:
        """Measure how much of the resident memory is other processes' share; it changes slowly and is slow to read."""
        anonymous_bytes, mapped_bytes = self._resident_bytes()
        try:
            pss = _sizes(self._folder / "smaps_rollup") if self._has_pss else {}
        except _ENDED:
            pss = {}
        self._others_bytes, self._own_part = 0, 1.0
        if "Pss" in pss and mapped_bytes:
            # Anonymous pages are shared after a fork until one side writes; mapped ones (libraries) stay shared. The
            # former are therefore corrected by an amount, which cannot grow, and the latter by a factor.
            own_anonymous_bytes = pss.get("Pss_Anon", anonymous_bytes)
            self._others_bytes = anonymous_bytes - own_anonymous_bytes
            self._own_part = max(pss["Pss"] - own_anonymous_bytes, 0) / mapped_bytes

    def busy_s(self) -> float:
        """Return the processor seconds of the process and of the children that it has waited for."""
        try:
            times = self.process.cpu_times()
            own_s = time.clock_gettime(self._clock)
        except psutil.NoSuchProcess:
            return 0.0
        except OSError:
            own_s = times.user + times.system
        return own_s + times.children_user + times.children_system

    def reset_peak(self) -> bool:
        """Restart the high-water mark of memory; return False if the kernel cannot."""
        try:
            # 5: "reset the peak resident set size to the current one" (proc(5), since Linux 4.0).
            (self._folder / "clear_refs").write_text("5")
        except _ENDED:
            return True
        except OSError:
            return False
        return True

    def peak_bytes(self) -> int:
        """Return the high-water mark of memory less what other processes share of it, bytes."""
        try:
            status = _sizes(self._folder / "status")
            used_bytes = _sizes(self._folder / "smaps_rollup").get("Pss", 0) if self._has_pss else status["VmRSS"]
            # The kernel records the peak of the resident size alone: memory shared now counts as shared then.
            return status["VmHWM"] - status["VmRSS"] + used_bytes
        except (*_ENDED, KeyError):  # a process that is ending has no memory lines
            return 0

    def _resident_bytes(self) -> tuple[int, int]:
        """Return resident anonymous memory and resident mapped files, bytes (proc(5), statm)."""
        if self._statm is None:
            return 0, 0
        try:
            # The file stays open: opening costs more than reading.
            _, resident, mapped, _ = os.pread(self._statm, 256, 0).split(None, 3)
        except (ProcessLookupError, ValueError):
            return 0, 0
        mapped_bytes = int(mapped) * _PAGE_BYTES
        return int(resident) * _PAGE_BYTES - mapped_bytes, mapped_bytes


def _sizes(path: Path) -> dict[str, int]:
    """Return the lines 'Name:  12 kB' of a file under /proc, in bytes."""
    sizes = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.removesuffix(" kB")) * 1024
    return sizes


def other_processes(listed: Collection[int], own: Collection[int]) -> OtherUse | None:
    """Return the listed processes of an accelerator that neither belong to the run nor were started by it.

    Args:
        listed: ids that the driver lists on the device.
        own: ids of the run's processes on this host.

    Returns:
        The other processes; None if there are none, or if no listed process belongs to the run. In the latter case the
        run has no context on the device yet, or the driver reports the host's ids in a container: owners are unknown.
    """
    others = sorted(pid for pid in listed if not _belongs_to(pid, own))
    if not others or len(others) == len(listed):
        return None
    return OtherUse(f"on the device too: {', '.join(map(_name, others))}")


def _belongs_to(pid: int, own: Collection[int]) -> bool:
    if pid in own:
        return True
    try:
        return any(parent.pid in own for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _name(pid: int) -> str:
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"process {pid}"
