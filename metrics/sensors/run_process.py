"""One process of a run on Linux: its memory and processor time from /proc, and from its own clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

_ENDED = (FileNotFoundError, ProcessLookupError)
"""What reading a file of a process raises that has ended."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RunProcess:
    """Reads one process; everything is 0 once it has ended, which is no error.

    Args:
        process: the process.
        has_pss: whether the kernel gives the proportional set size; else memory is the resident size.
    """

    def __init__(self, process: psutil.Process, has_pss: bool) -> None:
        self.process = process
        self._has_pss = has_pss
        self._folder = Path(f"/proc/{process.pid}")
        # What clock_getcpuclockid(3) gives on Linux: the inverted id, and 2 for run time.
        self._clock = (~process.pid << 3) | 2
        self._statm = self._open_statm()
        self._others_bytes = 0
        self._own_part = 1.0
        self._last_busy_s: float | None = None

    def close(self) -> None:
        """Let go of the open file."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None

    def read(self) -> tuple[float, float]:
        """Memory in bytes, and processor seconds since the last call (0 at the first: how long it has run before is
        no part of the time between two samples), cheaply: a training step waits for each microsecond of it.

        Memory is PSS as estimated from the resident size and what was shared at the last `learn_own_part`; before the
        first, the resident size itself. Processor time is to the nanosecond (/proc counts in ticks of 10 ms), without
        children that have ended.
        """
        anonymous_bytes, mapped_bytes = self._resident_bytes()
        last_s = self._last_busy_s
        try:
            self._last_busy_s = time.clock_gettime(self._clock)
        except OSError:  # of somebody else, or ended
            last_s = None
        spent_s = 0.0 if last_s is None or self._last_busy_s is None else max(self._last_busy_s - last_s, 0.0)
        return max(anonymous_bytes - self._others_bytes, 0) + mapped_bytes * self._own_part, spent_s

    def learn_own_part(self) -> None:
        """How much of the resident memory is others' share of it; changes slowly, and is dear to learn."""
        anonymous_bytes, mapped_bytes = self._resident_bytes()
        try:
            pss = _kilobytes(self._folder / "smaps_rollup") if self._has_pss else {}
        except _ENDED:
            pss = {}
        self._others_bytes, self._own_part = 0, 1.0
        if "Pss" in pss and mapped_bytes:
            own_anonymous_bytes = pss.get("Pss_Anon", anonymous_bytes)
            self._others_bytes = anonymous_bytes - own_anonymous_bytes  # copies not yet written to
            self._own_part = max(pss["Pss"] - own_anonymous_bytes, 0) / mapped_bytes

    def busy_s(self) -> float:
        """Processor seconds, and those of children that it has waited for."""
        try:
            times = self.process.cpu_times()
            own_s = time.clock_gettime(self._clock)
        except psutil.NoSuchProcess:
            return 0.0
        except OSError:
            own_s = times.user + times.system
        return own_s + times.children_user + times.children_system

    def reset_peak(self) -> bool:
        """Begin anew with the high-water mark; False where the kernel has none to reset."""
        try:
            # 5: "reset the peak resident set size to the current one" (proc(5), since Linux 4.0).
            (self._folder / "clear_refs").write_text("5")
        except _ENDED:
            return True
        except OSError:
            return False
        return True

    def peak_bytes(self) -> int:
        """The high-water mark less what is shared."""
        try:
            status = _kilobytes(self._folder / "status")
            used_bytes = _kilobytes(self._folder / "smaps_rollup").get("Pss", 0) if self._has_pss else status["VmRSS"]
            return status["VmHWM"] - status["VmRSS"] + used_bytes
        except (*_ENDED, KeyError):  # one that is ending has no memory to speak of
            return 0

    def _open_statm(self) -> int | None:
        try:
            return os.open(self._folder / "statm", os.O_RDONLY)
        except _ENDED:
            return None

    def _resident_bytes(self) -> tuple[int, int]:
        """Resident anonymous memory, and that of mapped files (proc(5), statm); the file stays open, for speed."""
        if self._statm is None:
            return 0, 0
        try:
            _, resident, mapped, _ = os.pread(self._statm, 256, 0).split(None, 3)
        except (ProcessLookupError, ValueError):
            return 0, 0
        mapped_bytes = int(mapped) * _PAGE_BYTES
        return int(resident) * _PAGE_BYTES - mapped_bytes, mapped_bytes


def _kilobytes(path: Path) -> dict[str, int]:
    """The lines 'Name:  12 kB' of a file under /proc, in bytes."""
    sizes = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.removesuffix(" kB")) * 1024
    return sizes
