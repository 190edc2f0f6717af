"""Cores that others use, links that are shaped, and what ranks say of them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from replicas.places import Host, job_environment, scripts
from support.command_line import TIME_LIMIT_S, command
from support.configs import tiny

from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout
from efficientbench.metrics.records.record_parts import Preflight

FIRST_CORE = min(os.sched_getaffinity(0))


@contextmanager
def computing(core: int, processes: int = 3) -> Iterator[None]:
    """Processes that compute on a core while the block runs."""
    others = [multiprocessing.Process(target=_spin, args=(core,), daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        sum(range(10_000))


def slow_down(host: Host, mbit: int) -> None:
    """Let a host send at most so many Mbit/s from now on; skips where links cannot be shaped."""
    if shutil.which("tc") is None:
        pytest.skip("links are shaped by iproute2's tc, which is not installed")
    shaped = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms")
    words = ["tc", "-n", host.namespace, "qdisc", "add", "dev", host.interface, *shaped]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"links cannot be shaped here: {' '.join(words)}: {done.stderr.strip()}")


def on_hosts(hosts: Sequence[Host], *words: str) -> str:
    """Run a command of `efficientbench` on hosts, a node on each; return what the first one printed."""
    starts = []
    for number, host in enumerate(hosts):
        place = {"MASTER_ADDR": hosts[0].address, "WORLD_SIZE": str(len(hosts)), "RANK": str(number)}
        place |= {"GLOO_SOCKET_IFNAME": host.interface, "EFFICIENTBENCH_SECRET": "a secret of these hosts"}
        starts.append((host.command(*command(*words)), job_environment(**place)))
    with scripts(*starts) as nodes:
        said = [node.communicate(timeout=TIME_LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0] * len(hosts), said
    return str(said[0][0])


def compared(time_s: float, slow: int | None = None, only_at_first: bool = False) -> Preflight:
    """The preflight of a pool's ranks, each a node, on one core: whoever else computes there slows all of them alike.

    Every rank of the pool calls it. `slow`: the rank that gets a fifth of what others on that core get;
    `only_at_first`: until all have been measured once, when all get equally little.
    """
    # Core and priority are those of a thread, which ends.
    with ThreadPoolExecutor(1) as own:
        return own.submit(_compared, time_s, slow, only_at_first).result()


def _compared(time_s: float, slow: int | None, only_at_first: bool) -> Preflight:
    import torch
    import torch.distributed as dist

    from efficientbench.devices.cpu import CPU
    from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
    from efficientbench.metrics.records.outliers import rounds_to_compare
    from efficientbench.running.job import Job
    from efficientbench.running.rank_process import Rank
    from efficientbench.worker.preflight import compare

    class Progress(HeartbeatWriter):
        """Slows this rank's thread once each of two works and two links has been measured in all rounds."""

        tasks = 0

        def at(self, step: int, phase: str) -> None:
            super().at(step, phase)
            self.tasks += 1
            if self.tasks > 4 * rounds_to_compare(2):
                _give_way()

    torch.set_num_threads(1)
    world, number = dist.get_world_size(), dist.get_rank()
    config = tiny("gqa_1.5B", f"parallel.dp={world}", f"faults.preflight_s={time_s}")
    layout = Layout.of(config, 1, world, oversubscribe=True)
    job = Job(config, layout, plan_budget(config, 1000), (), Path())
    os.sched_setaffinity(0, {FIRST_CORE})
    if number == slow:
        _give_way()
    heartbeat = Progress() if only_at_first else HeartbeatWriter()
    return compare(job, Rank(number, 0, heartbeat, lambda: False), CPU(), torch.device("cpu"))


def _give_way() -> None:
    """Let this thread get a fifth of what others on its core get."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
