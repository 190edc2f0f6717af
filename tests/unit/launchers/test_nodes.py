"""The launchers of several nodes, in real processes: what ends one ends all, and all tell the same reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import free_port
from support.repository import ROOT

from efficientbench.launchers.processes.supervision import print_stderr

NODE = """
import json, os, sys
from pathlib import Path
from efficientbench.config.schema import FaultsConfig
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.network.preflight import preflight
cluster, folder = Cluster.from_environment(os.environ), Path(sys.argv[2])
def write(failure):
    (folder / f"failure_{cluster.node_rank}").write_text(json.dumps([failure.kind, failure.rank, failure.step]))
with preflight(cluster, time_limit_s=20) as link:
    (folder / f"met_{cluster.node_rank}").touch()
    sys.exit(launch(
        [sys.executable, sys.argv[1]], 2, cluster, folder / "log", FaultsConfig(hang_limit_s=float(sys.argv[3])),
        on_failure=write, link=link,
    ))
"""

WORKER = """
import os, pathlib, signal, sys, time
from efficientbench.launchers.processes.failure import Failure, report_failure
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
rank = int(os.environ["RANK"])
folder = pathlib.Path({folder!r})
writer = HeartbeatWriter()
writer.at(3, "training")
writer.start()
def ready():
    while not list(pathlib.Path(os.environ["EFFICIENTBENCH_FAILURE_FILE"]).parent.glob(f"rank_{{rank}}.heartbeat")):
        time.sleep(0.01)
    (folder / f"ready_{{rank}}.new").write_text(str(os.getpid()))
    os.replace(folder / f"ready_{{rank}}.new", folder / f"ready_{{rank}}")
"""


class Nodes:
    """Two nodes of two ranks each: ranks 0 and 1, ranks 2 and 3."""

    def __init__(self, folder: Path, body: str, hang_limit_s: float) -> None:
        self.folder = folder
        script = folder / "worker.py"
        script.write_text(WORKER.format(folder=str(folder)) + textwrap.dedent(body))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        command = [sys.executable, "-c", NODE, str(script), str(folder), str(hang_limit_s)]
        self.processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **place, "RANK": str(node), "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in range(2)
        ]

    def pids(self) -> list[int]:
        """Of all ranks, once they are ready."""
        files = [self.folder / f"ready_{rank}" for rank in range(4)]
        end_s = time.monotonic() + 20
        while not all(file.exists() for file in files):
            assert time.monotonic() < end_s, [each.poll() for each in self.processes]
            time.sleep(0.02)
        return [int(file.read_text()) for file in files]

    def ends(self) -> list[tuple[int, str]]:
        """Exit code and stderr of each node."""
        printed = [process.communicate(timeout=30)[1] for process in self.processes]
        return [(process.returncode, text) for process, text in zip(self.processes, printed, strict=True)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """`nodes(body, hang_limit_s)` starts two nodes whose ranks run the body."""
    started: list[Nodes] = []

    def start(body: str, hang_limit_s: float = 600) -> Nodes:
        started.append(Nodes(tmp_path, body, hang_limit_s))
        return started[-1]

    yield start
    for each in started:
        each.close()


STAYS = "ready()\ntime.sleep(60)"
STOPS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
ready()
time.sleep(60)
"""


def test_nodes_whose_ranks_succeed_end_with_exit_code_0(nodes: Callable[..., Nodes]) -> None:
    assert nodes("time.sleep(0.2 * rank)").ends() == [(0, ""), (0, "")]


def test_a_killed_rank_ends_all_nodes_and_is_named_on_each(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    running = nodes(STAYS)
    os.kill(running.pids()[2], signal.SIGKILL)
    begin_s = time.monotonic()
    for code, message in running.ends():
        assert (code, message.count("error:")) == (1, 1)
        assert message.startswith("error: rank 2 on node 1: ended by SIGKILL")
    assert time.monotonic() - begin_s < 5
    assert (tmp_path / "failure_0").read_text() == '["lost_rank", 2, 3]'


def test_a_cause_on_another_node_is_named_before_its_consequences_here(nodes: Callable[..., Nodes]) -> None:
    body = """
    ready()
    while not (folder / "ready_3").exists():
        time.sleep(0.01)
    if rank == 3:
        report_failure(Failure("crash", "the third layer is crooked"))
        (folder / "reported").touch()
        time.sleep(0.4)
    while not (folder / "reported").exists():
        time.sleep(0.01)
    report_failure(Failure("lost_rank", "connection closed by peer")) if rank != 3 else None
    os._exit(1)
    """
    for code, message in nodes(body).ends():
        assert (code, message) == (1, "error: rank 3 on node 1: the third layer is crooked\n")


@pytest.mark.proof
def test_ranks_ended_by_the_launcher_are_not_named_as_the_cause(nodes: Callable[..., Nodes]) -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ready()
    while not (folder / "ready_0").exists():
        time.sleep(0.01)
    if rank == 3:
        report_failure(Failure("crash", "the third layer is crooked"))
        time.sleep(0.1)
        os._exit(1)
    time.sleep(60)
    """
    for code, message in nodes(body).ends():
        assert (code, message) == (1, "error: rank 3 on node 1: the third layer is crooked\n")


def test_a_signal_that_reaches_one_node_stops_all(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    running = nodes(STOPS)
    running.pids()
    running.processes[1].terminate()
    (first, printed), (second, _) = running.ends()
    assert (first, second) == (143, 143)
    assert printed.startswith("SIGTERM on node 1: the ranks have 60 s")
    assert "error" not in printed
    assert (tmp_path / "failure_0").read_text() == '["stopped", null, null]'


@pytest.mark.proof
def test_a_stop_signal_to_one_rank_stops_all_nodes(nodes: Callable[..., Nodes]) -> None:
    running = nodes(STOPS)
    os.kill(running.pids()[3], signal.SIGTERM)
    assert [code for code, _ in running.ends()] == [143, 143]


def test_a_lost_node_ends_the_other(nodes: Callable[..., Nodes]) -> None:
    running = nodes(STAYS)
    running.pids()
    running.processes[1].kill()
    assert running.ends()[0] == (1, "error: node 1 is gone: its launcher ended without a reason\n")


@pytest.mark.proof
def test_a_hung_rank_is_named_on_all_nodes(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    running = nodes("signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + STAYS, 4)
    os.kill(running.pids()[2], signal.SIGSTOP)
    for code, message in running.ends():
        assert code == 1
        named = "error: rank 2 on node 1: hung: no rank made progress for 4 s; rank 2 did not arrive (in step 3"
        assert message.startswith(named), message
        assert "its process is stopped (SIGSTOP)" in message
    assert (tmp_path / "failure_0").read_text() == '["hung", 2, 3]'


@pytest.mark.proof
def test_a_node_that_waits_for_a_progressing_node_is_not_hung(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    body = """
    ready()
    # Much longer than the limit; only rank 0 makes progress.
    for part in range(24):
        if rank == 0:
            writer.at(3, f"hashing part {part}")
        time.sleep(0.5)
    """
    assert nodes(body, 2).ends() == [(0, ""), (0, "")]
    assert not list(tmp_path.glob("failure_*"))


@pytest.mark.proof
def test_a_hung_node_is_named(nodes: Callable[..., Nodes]) -> None:
    running = nodes("signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + STAYS, 2)
    for pid in (running.processes[1].pid, *running.pids()[2:]):
        os.kill(pid, signal.SIGSTOP)
    message = running.processes[0].communicate(timeout=30)[1]
    assert running.processes[0].returncode == 1
    assert "ranks 2, 3 did not arrive (rank 2: node 1 gave no sign of life; rank 3:" in message


def test_control_characters_in_another_nodes_reason_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    print_stderr("error: \x1b[2Jgone\r")
    assert capfd.readouterr().err == "error: \ufffd[2Jgone\ufffd\n"
