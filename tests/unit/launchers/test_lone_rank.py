"""One rank on one node: where it meets itself, and what is said of its end."""

from __future__ import annotations

import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from efficientbench.config.schema import FaultsConfig
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.launch import launch


def python(program: str) -> list[str]:
    return [sys.executable, "-c", f"import os; {program}"]


def test_a_lone_node_needs_neither_its_address_nor_its_port(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        cluster = Cluster(1, 0, "10.0.0.1", taken.getsockname()[1])
        assert launch(python("print(os.environ['MASTER_ADDR'])"), 1, cluster, tmp_path, FaultsConfig()) == 0
    assert capfd.readouterr().out == "127.0.0.1\n"


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGBUS, "ended by SIGBUS (a file that it had open was cut short, or"), (35, "ended by signal 35")],
)
def test_the_signal_that_ended_a_rank_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int, told: str
) -> None:
    assert launch(python(f"os.kill(os.getpid(), {int(number)})"), 1, None, tmp_path, FaultsConfig()) == 1
    assert f"error: rank 0: {told}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "hangs",
    [
        "os.kill(os.getpid(), signal.SIGSTOP)",
        pytest.param("ctypes.CDLL(None).pause()", marks=pytest.mark.proof),
        pytest.param("ctypes.PyDLL(None).pause()", marks=pytest.mark.proof),
    ],
)
def test_a_hung_lone_rank_is_killed(tmp_path: Path, capfd: pytest.CaptureFixture[str], hangs: str) -> None:
    """The rank is stopped, or in a C function that never returns: without Python's lock, as a kernel, or with it."""
    program = f"""
import ctypes, signal, time
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
writer = HeartbeatWriter()
writer.at(3, "training")
writer.start()
time.sleep(0.5)
{hangs}
"""
    seen: list[Failure] = []
    begin_s = time.monotonic()
    assert launch(python(program), 1, None, tmp_path, FaultsConfig(hang_limit_s=2), seen.append) == 1
    assert time.monotonic() - begin_s > 2
    assert (seen[0].kind, seen[0].rank, seen[0].step) == ("hung", 0, 3)
    assert "error: rank 0: hung: made no progress for 2 s (in step 3, training" in capfd.readouterr().err
