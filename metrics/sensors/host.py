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
from metrics.sensors.base import Counters, DeviceInfo, Sample, Scope, Sensor

_NO_ALLOCATOR = "the host has no device allocator; memory is that of the run's processes"


class HostSensor(Sensor):
    """Memory = Σ PSS of the run's processes against the container's limit; utilization = CPU time / (cores × time).

    PSS (proportional set size) divides a page shared by n processes among them, so that the sum counts it once.
    Where the kernel does not give it, the sum is of RSS, `memory_kind` is 'rss', and shared pages count n times.

    Args:
        pids: every process of the run on this host, one for each rank; their children (data workers) are found and
            counted too. This process by default. One rank of a host is enough to hold this sensor; where several
            do, merging keeps one, so each must be given all of them.
    """

    name = "host"
    scope: Scope = "host"

    def __init__(self, pids: Sequence[int] | None = None) -> None:
        self.memory_kind = "pss"
        self.unavailable: dict[str, str] = {}
        self._roots = tuple(pids) if pids is not None else (os.getpid(),)
        self._processes: list[psutil.Process] = []
        self._cores = 1.0
        self._device: DeviceInfo | None = None
        self._last: tuple[float, float] | None = None

    def open(self) -> None:
        """Find the processes; raises MetricsError where none of them runs."""
        self._find_processes()
        if not self._processes:
            raise MetricsError(f"none of the run's processes {list(self._roots)} runs on this host")
        try:
            _pss_bytes(os.getpid())
        except OSError:
            self.memory_kind = "rss"
        self._cores = usable_cores()
        self._device = DeviceInfo(host_uuid(), processor_name(), memory_limit_bytes())
        no_power = "no power or energy sensor for the host is in use"
        self.unavailable = {
            "power_w": no_power,
            "energy_j": no_power,
            "peak_allocated_bytes": _NO_ALLOCATOR,
            "peak_reserved_bytes": _NO_ALLOCATOR,
        }

    def devices(self) -> list[DeviceInfo]:
        return [] if self._device is None else [self._device]

    def sample(self, time_s: float) -> list[Sample]:
        """Memory now, and utilization since the last sample (none at the first)."""
        used_bytes = sum(self._memory_bytes(process) for process in self._processes)
        busy_s = self._busy_s()
        utilization = None
        if self._last is not None and time_s > self._last[0]:
            utilization = max(busy_s - self._last[1], 0.0) / (time_s - self._last[0])
        self._last = (time_s, busy_s)
        return [Sample(time_s, host_uuid(), used_bytes, utilization)]

    def counters(self) -> dict[str, Counters]:
        # Walking all processes of the machine is too dear for each sample; the edges of the window will do.
        self._find_processes()
        return {host_uuid(): Counters(busy_s=self._busy_s())}

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

    def _memory_bytes(self, process: psutil.Process) -> int:
        try:
            return _pss_bytes(process.pid) if self.memory_kind == "pss" else process.memory_info().rss
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            return 0  # it has ended since the processes were last looked up

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


def _pss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    raise FileNotFoundError(f"/proc/{pid}/smaps_rollup gives no Pss")
