"""One rank on one node: where it meets itself, and what is said of its end."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.processes.launch import launch


def python(program: str) -> list[str]:
    return [sys.executable, "-c", f"import os; {program}"]


def test_a_node_alone_needs_neither_its_address_nor_its_port(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        cluster = Cluster(1, 0, "10.0.0.1", taken.getsockname()[1])
        assert launch(python("print(os.environ['MASTER_ADDR'])"), 1, cluster, tmp_path) == 0
    assert capfd.readouterr().out == "127.0.0.1\n"


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGBUS, "ended by SIGBUS (a file that it had open was cut short, or"), (35, "ended by signal 35")],
)
def test_the_signal_that_ended_a_rank_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int, told: str
) -> None:
    assert launch(python(f"os.kill(os.getpid(), {int(number)})"), 1, None, tmp_path) == 1
    assert f"error: rank 0: {told}" in capfd.readouterr().err
