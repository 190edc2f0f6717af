"""The host as one device: memory and processor time of a run's processes, on Linux."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from metrics.cgroup import memory_limit_bytes, usable_cores
from metrics.errors import MetricsError
from metrics.sensors.base import Counters, DeviceInfo, Foreign, Peaks, Sample, Scope, Sensor

_ENDED = (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess)
"""What reading of a process raises that has ended since the processes were last looked up."""


PSS_SHARE_OF_A_CORE = 0.0005
"""Reading PSS walks all page tables of a process: it may take this much of one core, and the resident size fills in."""

FIND_INTERVAL_S = 10.0
"""Between looks for new processes of the run, where others seem to use its cores."""

FOREIGN_SHARE = 0.1
"""Others count as a disturbance where they take this much of the cores; the kernel's own work stays below."""

OTHER_PROCESSES = "other processes ran on the run's cores"
HYPERVISOR = "the hypervisor gave the run's cores to others"

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class HostSensor(Sensor):
    """Memory = Σ PSS of the run's processes against the container's limit; utilization = CPU time / (cores × time).

    PSS (proportional set size) divides a page shared by n processes among them, so that the sum counts it once; it
    is read as often as its cost allows, and follows the resident size in between.
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
    may_block = False

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
        self._statm: dict[int, int] = {}
        self._own_part: dict[int, tuple[int, float]] = {}
        self._next_pss_s: float | None = None
        self._pss_cost_s = 0.0
        self._cpus: tuple[int, ...] = ()
        self._next_find_s = 0.0
        self._last_look: tuple[float, float, float, float] | None = None

    def open(self) -> None:
        """Find the processes; raises MetricsError where one of them does not run here."""
        missing = [pid for pid in self._roots if not psutil.pid_exists(pid)]
        if missing:
            raise MetricsError(f"no process {missing[0]} runs on this host, to be measured as one of the run's")
        self._find_processes()
        self._has_pss = Path("/proc/self/smaps_rollup").exists()
        self._cores = usable_cores(self._roots)
        self._cpus = tuple(sorted(set().union(*(os.sched_getaffinity(pid) for pid in self._roots))))
        self._read_pss()
        kind = "pss" if self._has_pss else "rss"
        self._devices = [DeviceInfo(host_uuid(), processor_name(), memory_limit_bytes(), kind, self._roots)]

    def devices(self) -> list[DeviceInfo]:
        return self._devices

    def sample(self, time_s: float) -> list[Sample]:
        """Memory now, and utilization since the last sample (none at the first), without children that have ended."""
        if self._next_pss_s is None or time_s >= self._next_pss_s:
            if self._next_pss_s is not None:  # `open` has just done so
                self._read_pss()
            self._next_pss_s = time_s + self._pss_cost_s / PSS_SHARE_OF_A_CORE
        used_bytes = sum(self._estimated_bytes(process.pid) for process in self._processes)
        busy_s = sum(_processor_s(process.pid) for process in self._processes) / self._cores
        utilization = None
        if self._last is not None and time_s > self._last[0]:
            utilization = max(busy_s - self._last[1], 0.0) / (time_s - self._last[0])
        self._last = (time_s, busy_s)
        return [Sample(time_s, self._devices[0].uuid, used_bytes, utilization)]

    def counters(self) -> dict[str, Counters]:
        # To walk all processes of the machine, and all pages of the run's, is too dear for each sample; the edges of
        # the window will do. By the first of them the ranks share what they did not at the start: libraries' pages.
        self._find_processes()
        self._read_pss()
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

    def close(self) -> None:
        for descriptor in self._statm.values():
            os.close(descriptor)
        self._statm.clear()

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
        for pid in self._statm.keys() - found.keys():
            os.close(self._statm.pop(pid))

    def _memory_bytes(self, pid: int) -> int:
        try:
            if self._has_pss:
                return _kilobytes(Path(f"/proc/{pid}/smaps_rollup")).get("Pss", 0)
            return _kilobytes(Path(f"/proc/{pid}/status")).get("VmRSS", 0)
        except _ENDED:
            return 0

    def foreign(self) -> dict[str, Foreign]:
        """What others took of the cores that the run may use: the rest of their busy time in /proc/stat."""
        every = psutil.cpu_times(percpu=True)
        if not self._cpus or self._cpus[-1] >= len(every):  # they are listed by place, without those that are offline
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
        if max(others, stolen) < FOREIGN_SHARE:
            return {}
        if self._found_new_processes():
            # The run's own, started since: how much of it was theirs is known from the next look on.
            self._last_look = None
            return {}
        found = Foreign(OTHER_PROCESSES, others) if others >= stolen else Foreign(HYPERVISOR, stolen)
        return {self._devices[0].uuid: found}

    def _found_new_processes(self) -> bool:
        """Whether the run has started processes since the last look, which is dear: all processes are walked."""
        now_s = time.monotonic()
        if now_s < self._next_find_s:
            return False
        self._next_find_s = now_s + FIND_INTERVAL_S
        known = {process.pid for process in self._processes}
        self._find_processes()
        return bool({process.pid for process in self._processes} - known)

    def _read_pss(self) -> None:
        """How much of each process's resident memory is others' share of it; changes slowly, and is dear to learn."""
        begin_s = time.thread_time()
        for process in self._processes:
            self._own_part[process.pid] = self._learn_own_part(process.pid)
        self._pss_cost_s = time.thread_time() - begin_s

    def _learn_own_part(self, pid: int) -> tuple[int, float]:
        """Bytes of its anonymous memory that are others' (copies not yet written to), and its part of mapped files."""
        anonymous_bytes, mapped_bytes = self._resident_bytes(pid)
        try:
            pss = _kilobytes(Path(f"/proc/{pid}/smaps_rollup")) if self._has_pss else {}
        except _ENDED:
            pss = {}
        if "Pss" not in pss or not mapped_bytes:
            return 0, 1.0
        own_anonymous_bytes = pss.get("Pss_Anon", anonymous_bytes)
        return anonymous_bytes - own_anonymous_bytes, max(pss["Pss"] - own_anonymous_bytes, 0) / mapped_bytes

    def _estimated_bytes(self, pid: int) -> int:
        """PSS from the resident size, which is cheap, and what was shared at the last look."""
        if pid not in self._own_part:
            self._own_part[pid] = self._learn_own_part(pid)
        anonymous_bytes, mapped_bytes = self._resident_bytes(pid)
        others_bytes, part = self._own_part[pid]
        return max(anonymous_bytes - others_bytes, 0) + round(mapped_bytes * part)

    def _resident_bytes(self, pid: int) -> tuple[int, int]:
        """Resident anonymous memory, and that of mapped files (proc(5), statm); the file stays open, for speed.

        0 for a process that has ended.
        """
        try:
            if pid not in self._statm:
                self._statm[pid] = os.open(f"/proc/{pid}/statm", os.O_RDONLY)
            resident, mapped = map(int, os.pread(self._statm[pid], 256, 0).split()[1:3])
            return (resident - mapped) * _PAGE_BYTES, mapped * _PAGE_BYTES
        except (*_ENDED, IndexError, ValueError):
            return 0, 0

    def _busy_s(self) -> float:
        """Processor seconds of all processes, and of children that they have waited for, over the cores."""
        total_s = 0.0
        for process in self._processes:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total_s += _processor_s(process.pid) or times.user + times.system
            total_s += times.children_user + times.children_system
        return total_s / self._cores


def host_uuid() -> str:
    """The same text in every process of one container or machine, another on any other."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return f"HOST-{socket.gethostname()}-{boot_id.read_text().strip() if boot_id.exists() else 'unknown-boot'}"


def machine_uuid() -> str:
    """The same text in every process of one machine, in whichever of its containers: for devices that they share."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return boot_id.read_text().strip() if boot_id.exists() else host_uuid()


def processor_name() -> str:
    """The processor's own name, or the architecture's where the kernel gives none (as on most aarch64)."""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return f"{platform.machine()} processor"


def _processor_s(pid: int) -> float:
    """A process's processor time by its own clock, to the nanosecond; /proc counts in ticks of 10 ms.

    The clock's number is what clock_getcpuclockid(3) gives on Linux: the inverted id, and 2 for run time. 0 where the
    process belongs to somebody else, or has just ended.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _kilobytes(path: Path) -> dict[str, int]:
    """The lines 'Name:  12 kB' of a file under /proc, in bytes."""
    sizes = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.removesuffix(" kB")) * 1024
    return sizes
