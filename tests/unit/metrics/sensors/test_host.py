"""The host sensor on this machine's own /proc, and limits of made-up cgroups."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.metrics_parts import measure_step, opened
from support.quiet import eventually

from efficientbench.basics.cgroup import memory_limit_bytes, usable_cores
from efficientbench.metrics import HostSensor, MetricsError

pytestmark = pytest.mark.alone

MB = 10**6


def burn_s(seconds: float) -> None:
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


def use_and_free() -> None:
    block = bytearray(b"x") * (300 * MB)
    del block


def hold_memory(size: int, ready: object, done: object) -> None:
    block = bytearray(b"x") * size
    ready.set()  # type: ignore[attr-defined]
    done.wait(30)  # type: ignore[attr-defined]
    del block


# Each other process with the same libraries that starts or ends changes this one's share of them, hence `eventually`.
def used(sensor: HostSensor) -> int:
    return int(opened(sensor).sample(0.0)[0].memory_used_bytes or 0)


def test_memory_rises_by_the_allocated_bytes() -> None:
    def rise() -> int:
        sensor = opened(HostSensor())
        before = sensor.sample(0.0)[0].memory_used_bytes
        block = bytearray(b"x") * (500 * MB)
        after = sensor.sample(1.0)[0].memory_used_bytes
        del block
        return after - before

    assert eventually(rise, lambda found: found == pytest.approx(500 * MB, rel=0.03))


def peak_above_mean(work: Callable[[], object] = lambda: None) -> float:
    run = measure_step(HostSensor(), work=work, sample_interval_s=1e6)
    return run.peak_memory_device_bytes - run.amu_gb * 1e9


def test_a_peak_between_samples_is_seen() -> None:
    assert eventually(lambda: peak_above_mean(use_and_free), lambda found: found == pytest.approx(300 * MB, rel=0.05))


def test_a_peak_before_the_window_does_not_count() -> None:
    def later_peak() -> float:
        use_and_free()
        return peak_above_mean()

    assert eventually(later_peak, lambda found: found < 50 * MB) is not None


def test_memory_and_cpu_time_of_every_process_of_the_run_count_once() -> None:
    # A fork shares nearly all of its pages with this process: RSS would count them twice, PSS counts them once.
    ballast = bytearray(b"x") * (200 * MB)
    context = multiprocessing.get_context("fork")

    def measured() -> tuple[int, int, int]:
        ready, done = context.Event(), context.Event()
        alone = used(HostSensor())
        child = context.Process(target=hold_memory, args=(100 * MB, ready, done))
        child.start()
        try:
            assert ready.wait(20)
            return alone, used(HostSensor()), used(HostSensor([os.getpid(), child.pid]))
        finally:
            done.set()
            child.join()

    def counted_once(found: tuple[int, int, int]) -> bool:
        alone, together, named = found  # named: found by its id and as a child
        return together - alone == pytest.approx(100 * MB, rel=0.25) and named == pytest.approx(together, rel=0.05)

    assert eventually(measured, counted_once)
    assert len(ballast) == 200 * MB


def test_utilization_is_cpu_time_over_the_cores() -> None:
    cores = usable_cores()
    run = measure_step(HostSensor(), work=lambda: burn_s(0.6))
    assert run.pcu == pytest.approx(0.6 / run.window_s / cores, rel=0.1)


def test_utilization_never_exceeds_all_cores() -> None:
    # /proc counts processor time in ticks of 10 ms, which is the whole of this window.
    for _ in range(5):
        run = measure_step(HostSensor(), work=lambda: burn_s(0.004))
        assert 0 < run.pcu < 1.3 / usable_cores()


def test_other_processes_on_the_cores_are_a_disturbance_but_the_run_itself_is_not() -> None:
    # One core for both, so that they take half of it each on an idle machine.
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    program = f"import os; os.sched_setaffinity(0, [{core}]); print(os.getpid(), flush=True)\nwhile True: pass"
    # By a shell that ends at once, so that it is no child of ours.
    shell = subprocess.Popen(["sh", "-c", '"$0" -c "$1" &', sys.executable, program], stdout=subprocess.PIPE)
    other = psutil.Process(int(shell.stdout.readline()))
    try:
        os.sched_setaffinity(0, [core])
        with_other, alone = opened(HostSensor()), opened(HostSensor([os.getpid(), other.pid]))
        with_other.other_use(), alone.other_use()
        begin_s, other_begin_s = time.monotonic(), other.cpu_times().user
        burn_s(0.7)
        seen, quiet = with_other.other_use(), alone.other_use()
        others_part = (other.cpu_times().user - other_begin_s) / (time.monotonic() - begin_s)
    finally:
        other.kill()
        os.sched_setaffinity(0, before)
    (found,) = seen.values()
    share_of_own = quiet[next(iter(quiet))].share if quiet else 0.0
    # The machine may have other work: what differs between both sensors is the other process alone.
    assert found.share - share_of_own == pytest.approx(others_part, abs=0.15)


def busy_child() -> subprocess.Popen[bytes]:
    """A process that has taken half a second of a processor, and rests."""
    program = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ntime.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout.readline()
    return child


def test_cpu_time_before_a_process_was_first_seen_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficientbench.metrics.sensors.host.usable_cores", lambda pids: 1.0)
    with closing(opened(HostSensor())) as sensor, busy_child() as child:
        sensor.sample(time.monotonic())
        sensor.counters()  # which finds it
        (sample,) = sensor.sample(time.monotonic())
        child.kill()
    assert 0 <= (sample.utilization or 0) < 2


def test_an_ended_process_of_the_run_is_no_disturbance() -> None:
    with busy_child() as child:
        sensor = opened(HostSensor([child.pid]))
        sensor.other_use()
        child.kill()
    time.sleep(0.2)  # what it took is missing from what the run has taken, and is not what others took
    assert sensor.other_use() == {}
    sensor.close()


def test_a_sleeping_process_is_idle() -> None:
    assert measure_step(HostSensor(), work=lambda: time.sleep(0.5)).pcu < 0.1


def test_cpu_time_of_short_lived_children_counts() -> None:
    command = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"]
    run = measure_step(HostSensor(), work=lambda: subprocess.run(command, check=True))
    assert run.pcu == pytest.approx(0.5 / run.window_s / usable_cores(), rel=0.2)


def test_quantities_that_the_host_lacks_have_a_reason() -> None:
    run = measure_step(HostSensor())
    assert (run.device_scope, run.energy_j, run.peak_memory_allocated_bytes) == ("host", None, None)
    assert run.memory_kind in ("pss", "rss")
    assert "power" in run.unavailable["energy_j"]
    assert "no device allocator" in run.unavailable["peak_memory_allocated_bytes"]


def test_a_missing_process_is_refused() -> None:
    finished = subprocess.Popen([sys.executable, "-c", ""])
    finished.wait()
    with pytest.raises(MetricsError, match=f"no process {finished.pid} runs"):
        opened(HostSensor([os.getpid(), finished.pid]))


def test_the_capacity_is_at_most_this_machines_memory() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < memory_limit_bytes() <= total
    assert 0 < usable_cores() <= (os.cpu_count() or 1)


GIB = 1024**3


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "limit_gib"),
    [
        ({}, 64),
        # v2 inside a container: the namespace's root carries the limit.
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{8 * GIB}\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 64),
        # v2 on a host: the tightest of the groups above counts.
        (
            {
                "proc/self/cgroup": "0::/user.slice/job\n",
                "sys/fs/cgroup/user.slice/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/user.slice/job/memory.max": f"{6 * GIB}\n",
            },
            4,
        ),
        # v1, where no limit is a huge number.
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            2,
        ),
        # v1 in a container without a namespace of its own: the path is the host's, the mount is ours.
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
            },
            3,
        ),
    ],
)
def test_a_containers_memory_limit_is_the_capacity(
    files: dict[str, str], limit_gib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=64 * GIB))
    assert memory_limit_bytes(make(tmp_path, files)) == limit_gib * GIB


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"},
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_a_quota_of_half_a_core_counts_as_half_a_core(files: dict[str, str], tmp_path: Path) -> None:
    assert usable_cores(root=make(tmp_path, files)) == 0.5


@pytest.mark.parametrize("text", ["max 100000\n", "", "-1\n"])
def test_cores_follow_the_affinity_without_a_quota(text: str, tmp_path: Path) -> None:
    root = make(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    assert usable_cores(root=root) == len(os.sched_getaffinity(0))


def test_unlisted_processors_do_not_end_the_series(monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = opened(HostSensor())
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: [])
    assert sensor.other_use() == {}


def test_a_new_child_of_the_run_is_no_disturbance() -> None:
    sensor = opened(HostSensor())
    sensor.other_use()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        assert sensor.other_use() == {}
    finally:
        child.kill()
        child.wait()
