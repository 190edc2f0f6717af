"""Cores that others use, and links that are slowed."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from replicas.places import Host, job_environment, scripts
from support.command_line import TIME_LIMIT_S, command


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
    """Let a host send at most so many Mbit/s from now on."""
    shaped = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms")
    subprocess.run(["tc", "-n", host.namespace, "qdisc", "add", "dev", host.interface, *shaped], check=True)


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
