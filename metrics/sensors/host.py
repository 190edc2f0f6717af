"""Reads the host as one device: memory and processor time of a run's processes, on Linux."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from efficientbench.basics.cgroup import memory_limit_bytes, usable_cores
from efficientbench.basics.errors import MetricsError
from efficientbench.basics.files import text_at
from efficientbench.metrics.sensors.base import (
    ALLOCATOR_PEAKS,
    MEMORY_AND_UTILIZATION,
    Counters,
    DeviceInfo,
    OtherUse,
    Peaks,
    Sample,
    Scope,
    Sensor,
)
from efficientbench.metrics.sensors.processes import RunProcess

PSS_SHARE_OF_A_CORE = 0.0002
"""Reading PSS, which walks all page tables of a process, may take this much of one core."""

FIND_INTERVAL_S = 10.0
"""Time between searches for new processes of the run while others seem to use its cores."""

OTHER_USE_SHARE = 0.1
"""Others that take this fraction of the cores are a disturbance; the kernel's own work stays below."""

OTHER_PROCESSES = "other processes ran on the run's cores"
HYPERVISOR = "the hypervisor gave the run's cores to others"

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostSensor(Sensor):
    """Memory = Σ PSS of the run's processes against the container's limit; utilization = CPU time / (cores × time).

    PSS (proportional set size) divides a page shared by n processes among them, so that the sum counts it once. The
    sensor reads PSS as often as its cost allows, and follows the resident size in between. Without PSS in the kernel it
    sums resident sizes: `memory_kind` is 'rss', and a page shared by n processes counts n times. The peak is the sum of
    the processes' high-water marks (VmHWM) less what they share; restarting it also resets `getrusage`'s maxrss.

    Args:
        pids: the processes of the run's ranks on this host; this process by default. Their children (data workers)
            count too. One rank of a host needs this sensor. If several have it, merging keeps one reading, so that
            each sensor needs all ids.
    """

    name = "host"
    counters_are_watched = False
    scope: Scope = "host"
    is_slow = False
    figures = MEMORY_AND_UTILIZATION

    def __init__(self, pids: Sequence[int] | None = None) -> None:
        no_power, no_allocator = "no sensor for the host's power was in use", "the host has no device allocator"
        self.unavailable = {
            "power_w": no_power,
            "energy_j": no_power,
            **dict.fromkeys(ALLOCATOR_PEAKS, no_allocator),
        }
        self._roots = tuple(pids) if pids is not None else (os.getpid(),)
        self._processes: list[RunProcess] = []
        self._cores = 1.0
        self._has_pss = Path("/proc/self/smaps_rollup").exists()
        self._has_peaks = True
        self._devices: list[DeviceInfo] = []
        self._last_s: float | None = None
        self._next_pss_s: float | None = None
        self._pss_cost_s = 0.0
        self._cpus: tuple[int, ...] = ()
        self._next_find_s = 0.0
        self._last_look: tuple[float, float, float, float] | None = None

    def open(self) -> None:
        """Find the processes.

        Raises:
            MetricsError: one of them does not run on this host.
        """
        missing = [pid for pid in self._roots if not psutil.pid_exists(pid)]
        if missing:
            raise MetricsError(f"no process {missing[0]} runs on this host, to be measured as one of the run's")
        self._find_processes()
        self._cores = usable_cores(self._roots)
        self._cpus = tuple(sorted(set().union(*(os.sched_getaffinity(pid) for pid in self._roots))))
        self._read_pss()
        kind = "pss" if self._has_pss else "rss"
        self._devices = [DeviceInfo(host_uuid(), processor_name(), memory_limit_bytes(), kind, self._roots)]

    def devices(self) -> list[DeviceInfo]:
        return self._devices

    def sample(self, time_s: float) -> list[Sample]:
        """Return memory now, and utilization since the last sample (None at the first).

        Utilization does not count the processor time of children that have ended.
        """
        if self._next_pss_s is None or time_s >= self._next_pss_s:
            if self._next_pss_s is not None:  # at the first sample, `open` has just read it
                self._read_pss()
            self._next_pss_s = time_s + self._pss_cost_s / PSS_SHARE_OF_A_CORE
        used_bytes = busy_s = 0.0
        for process in self._processes:
            process_bytes, process_s = process.read()
            used_bytes += process_bytes
            busy_s += process_s
        utilization = None
        if self._last_s is not None and time_s > self._last_s:
            utilization = busy_s / (self._cores * (time_s - self._last_s))
        self._last_s = time_s
        return [Sample(time_s, self._devices[0].uuid, used_bytes, utilization)]

    def counters(self) -> dict[str, Counters]:
        # Walking all processes of the machine, and all pages of the run's, costs too much for each sample. The edges of
        # the window are enough: by its opening the ranks share the pages of libraries that they loaded since `open`.
        self._find_processes()
        self._read_pss()
        return {self._devices[0].uuid: Counters(busy_s=self._busy_s())}

    def reset_peaks(self) -> None:
        self._find_processes()
        self._has_peaks = all(process.reset_peak() for process in self._processes)

    def peaks(self) -> dict[str, Peaks]:
        if not self._has_peaks:
            return {}
        peak_bytes = sum(process.peak_bytes() for process in self._processes)
        return {self._devices[0].uuid: Peaks(peak_memory_device_bytes=peak_bytes)}

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self._processes, self._last_s = [], None

    def _find_processes(self) -> None:
        """Find the run's current processes; keep known processes with their open files."""
        known = {process.process: process for process in self._processes}
        found: dict[psutil.Process, RunProcess] = {}
        for pid in self._roots:
            try:
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    if process in known:
                        found[process] = known.pop(process)
                    elif process not in found:
                        found[process] = RunProcess(process, self._has_pss)
            except psutil.NoSuchProcess:
                continue
        for ended in known.values():
            ended.close()
        self._processes = list(found.values())

    def other_use(self) -> dict[str, OtherUse]:
        """Return what others took of the run's cores: the cores' busy time in /proc/stat less the run's own."""
        every = psutil.cpu_times(percpu=True)
        if not self._cpus or self._cpus[-1] >= len(every):  # the list skips offline cores, which shifts the others
            return {}
        times = [every[cpu] for cpu in self._cpus]
        all_s = sum(t.user + t.nice + t.system + t.irq + t.softirq + t.steal + t.idle + t.iowait for t in times)
        busy_s = sum(t.user + t.nice + t.system + t.irq + t.softirq for t in times)
        stolen_s = sum(t.steal for t in times)
        now = (all_s, busy_s, stolen_s, self._busy_s() * self._cores)
        last, self._last_look = self._last_look, now
        if last is None or now[0] <= last[0]:
            return {}
        passed_s, busy_s, stolen_s, own_s = (after - before for after, before in zip(now, last, strict=True))
        others, stolen = (busy_s - own_s) / passed_s, stolen_s / passed_s
        if max(others, stolen) < OTHER_USE_SHARE:
            return {}
        if self._processes_changed():
            # The run itself started or ended processes, whose part of this busy time is unknown: compare next time.
            self._last_look = None
            return {}
        use = OtherUse(OTHER_PROCESSES, others) if others >= stolen else OtherUse(HYPERVISOR, stolen)
        return {self._devices[0].uuid: use}

    def _processes_changed(self) -> bool:
        """Return whether the run has started or ended processes since the last search."""
        now_s = time.monotonic()
        if now_s < self._next_find_s:  # the search walks all processes of the machine
            return False
        self._next_find_s = now_s + FIND_INTERVAL_S
        known = {process.process for process in self._processes}
        self._find_processes()
        if known == {process.process for process in self._processes}:
            return False
        self._read_pss()
        return True

    def _read_pss(self) -> None:
        begin_s = time.thread_time()
        for process in self._processes:
            process.update_shared()
        self._pss_cost_s = time.thread_time() - begin_s

    def _busy_s(self) -> float:
        """Return the run's seconds of full use of all its cores."""
        return sum(process.busy_s() for process in self._processes) / self._cores


def host_uuid() -> str:
    """Return an identifier that all processes of one container or machine share, and no process elsewhere has."""
    return f"HOST-{socket.gethostname()}-{text_at(_BOOT_ID) or 'unknown-boot'}"


def machine_uuid() -> str:
    """Return an identifier that all processes and containers of one machine share, for devices that they share."""
    return text_at(_BOOT_ID) or host_uuid()


def processor_name() -> str:
    """Return the processor's name, or the architecture's if the kernel reports none (as on most aarch64)."""
    for line in text_at(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return f"{platform.machine()} processor"
