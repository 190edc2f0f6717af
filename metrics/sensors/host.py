"""The host as one device: memory and processor time of a run's processes, on Linux."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

from metrics.cgroup import memory_limit_bytes, usable_cores
from metrics.errors import MetricsError
from metrics.sensors.base import Counters, DeviceInfo, Peaks, Sample, Scope, Sensor

_ENDED = (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess)
"""What reading of a process raises that has ended since the processes were last looked up."""


class HostSensor(Sensor):
    """Memory = Σ PSS of the run's processes against the container's limit; utilization = CPU time / (cores × time).

    PSS (proportional set size) divides a page shared by n processes among them, so that the sum counts it once.
    Where the kernel does not give it, the sum is of RSS, the device's `memory_kind` says 'rss', and shared pages
    count n times. The peak is the kernel's own high-water mark of each process (VmHWM) less what it shares, summed;
    beginning anew with it also resets what `getrusage` calls maxrss.

    Args:
        pids: every process of the run on this host, one for each rank; their children (data workers) are found and
            counted too. This process by default. One rank of a host is enough to hold this sensor; where several
            do, merging keeps one, so each must be given all of them.
    """

    name = "host"
    scope: Scope = "host"

    def __init__(self, pids: Sequence[int] | None = None) -> None:
        no_power, no_allocator = "no sensor for the host's power was in use", "the host has no device allocator"
        self.unavailable = {
            "power_w": no_power,
            "energy_j": no_power,
            "allocated_bytes": no_allocator,
            "reserved_bytes": no_allocator,
        }
        self._roots = tuple(pids) if pids is not None else (os.getpid(),)
        self._processes: list[psutil.Process] = []
        self._cores = 1.0
        self._has_pss = True
        self._has_peaks = True
        self._devices: list[DeviceInfo] = []
        self._last: tuple[float, float] | None = None

    def open(self) -> None:
        """Find the processes; raises MetricsError where one of them does not run here."""
        missing = [pid for pid in self._roots if not psutil.pid_exists(pid)]
        if missing:
            raise MetricsError(f"no process {missing[0]} runs on this host, to be measured as one of the run's")
        self._find_processes()
        self._has_pss = Path("/proc/self/smaps_rollup").exists()
        self._cores = usable_cores(self._roots)
        kind = "pss" if self._has_pss else "rss"
        self._devices = [DeviceInfo(host_uuid(), processor_name(), memory_limit_bytes(), kind, self._roots)]

    def devices(self) -> list[DeviceInfo]:
        return self._devices

    def sample(self, time_s: float) -> list[Sample]:
        """Memory now, and utilization since the last sample (none at the first)."""
        used_bytes = sum(self._memory_bytes(process.pid) for process in self._processes)
        busy_s = self._busy_s()
        utilization = None
        if self._last is not None and time_s > self._last[0]:
            utilization = max(busy_s - self._last[1], 0.0) / (time_s - self._last[0])
        self._last = (time_s, busy_s)
        return [Sample(time_s, self._devices[0].uuid, used_bytes, utilization)]

    def counters(self) -> dict[str, Counters]:
        # To walk all processes of the machine is too dear for each sample; the edges of the window will do.
        self._find_processes()
        return {self._devices[0].uuid: Counters(busy_s=self._busy_s())}

    def reset_peaks(self) -> None:
        self._find_processes()
        for process in self._processes:
            try:
                # 5: "reset the peak resident set size to the current one" (proc(5), since Linux 4.0).
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            except _ENDED:
                continue
            except OSError:
                self._has_peaks = False
                return

    def peaks(self) -> dict[str, Peaks]:
        if not self._has_peaks:
            return {}
        used_bytes = 0
        for process in self._processes:
            try:
                status = _kilobytes(Path(f"/proc/{process.pid}/status"))
                used_bytes += status["VmHWM"] - status["VmRSS"] + self._memory_bytes(process.pid)
            except (*_ENDED, KeyError):  # a process that is ending has no memory to speak of
                continue
        return {self._devices[0].uuid: Peaks(used_bytes=used_bytes)}

    def _find_processes(self) -> None:
        found: dict[int, psutil.Process] = {}
        for pid in self._roots:
            try:
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    found[process.pid] = process
            except psutil.NoSuchProcess:
                continue
        self._processes = list(found.values())

    def _memory_bytes(self, pid: int) -> int:
        try:
            if self._has_pss:
                return _kilobytes(Path(f"/proc/{pid}/smaps_rollup")).get("Pss", 0)
            return _kilobytes(Path(f"/proc/{pid}/status")).get("VmRSS", 0)
        except _ENDED:
            return 0

    def _busy_s(self) -> float:
        """Processor seconds of all processes, and of children that they have waited for, over the cores."""
        total_s = 0.0
        for process in self._processes:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total_s += times.user + times.system + times.children_user + times.children_system
        return total_s / self._cores


def host_uuid() -> str:
    """The same text in every process of one container or machine, another on any other."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return f"HOST-{socket.gethostname()}-{boot_id.read_text().strip() if boot_id.exists() else 'unknown-boot'}"


def processor_name() -> str:
    """The processor's own name, or the architecture's where the kernel gives none (as on most aarch64)."""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return f"{platform.machine()} processor"


def _kilobytes(path: Path) -> dict[str, int]:
    """The lines 'Name:  12 kB' of a file under /proc, in bytes."""
    sizes = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.removesuffix(" kB")) * 1024
    return sizes
