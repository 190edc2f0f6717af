"""The line between the launchers of two nodes: which messages count, and who may have sent them."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from efficientbench.basics.errors import LaunchError
from efficientbench.config.schema import FaultsConfig
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.secret import Seal
from efficientbench.launchers.processes.launch import launch

KEY = b"of this conversation"


@pytest.fixture
def ends() -> Iterator[tuple[NodeLink, NodeLink]]:
    """Of the line between two nodes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    own, other = (here, Seal(KEY, 0, 1)), (there, Seal(KEY, 1, 0))
    with NodeLink(0, 2, {1: own}) as first, NodeLink(1, 2, {0: other}) as second:
        yield first, second


def test_messages_that_arrive_during_a_wait_are_not_lost(ends: tuple[NodeLink, NodeLink]) -> None:
    first, second = ends
    for kind in ("failure", "prepared", "stop"):
        first.send(kind)
    second.wait_for("prepared", [0])
    assert [message["kind"] for message in second.receive()] == ["failure", "stop"]
    assert second.receive() == []


def test_waiting_for_an_ended_node_fails_with_its_reason(ends: tuple[NodeLink, NodeLink]) -> None:
    first, second = ends
    first.send("trouble", reason="the disk is full")
    first.close()
    with pytest.raises(LaunchError, match="node 0 ended before any rank was started: the disk is full"):
        second.wait_for("prepared", [0])


HOSTILE = [
    b"{}",
    b"[]",
    b"null",
    b"\xff\xfe",
    b"[" * 60_000,
    b'{"kind": "done", "node": 0}',
    b'{"kind": "gone", "node": 1}',
    b'{"kind": "unheard of", "node": 1}',
    b'{"kind": ["stop"], "node": 1}',
    b'{"kind": "stop", "node": 1}',
    b'{"kind": "stop", "node": 1, "signal": 9}',
    b'{"kind": "stop", "node": 1, "signal": "2; reboot"}',
    b'{"kind": "stop", "node": true, "signal": 15}',
    b'{"kind": "failure", "node": 1}',
    b'{"kind": "failure", "node": 1, "failure": {"kind": "no such kind", "reason": "x"}}',
    b'{"kind": "failure", "node": 1, "failure": [1, 2]}',
    b'{"kind": "heartbeats", "node": 1}',
    b'{"kind": "heartbeats", "node": 1, "beats": {"x": 1}, "ended": {}}',
    b'{"kind": "heartbeats", "node": 1, "beats": {"2": {"step": "x"}}, "ended": {}}',
    b'{"kind": "heartbeats", "node": 1, "beats": {}, "ended": []}',
    b'{"kind": "place", "node": 1, "place": 7}',
]


def test_malformed_lines_of_another_node_do_not_end_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Only a complete message has an effect."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as other:
        other.connect(listener.getsockname())
        here, _ = listener.accept()
        seal = Seal(KEY, 1, 0)
        other.sendall(b"".join(map(seal.sealed, HOSTILE)))
        link = NodeLink(0, 2, {1: (here, Seal(KEY, 0, 1))})
        command = [sys.executable, "-c", "import time; time.sleep(1)"]
        cluster = Cluster(2, 0, "127.0.0.1", 1)
        assert launch(command, 1, cluster, tmp_path, FaultsConfig(hang_limit_s=60), link=link) == 0
        link.close()
    lines = capfd.readouterr().err.splitlines()
    assert all(line.startswith("ignored a line of node 1: ") for line in lines), lines
    # A place is none of the launcher's business at that time.
    assert len(lines) >= len(HOSTILE) - 1


def test_only_lines_sealed_by_the_other_node_are_accepted() -> None:
    stop = b'{"kind": "stop", "node": 1, "signal": 15}'
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as other:
        other.connect(listener.getsockname())
        here, _ = listener.accept()
        first = Seal(KEY, 1, 0).sealed(stop)
        seal = Seal(KEY, 1, 0)
        cut = seal.sealed(stop)[:90]
        third = seal.sealed(stop)
        forged = [
            stop + b"\n",
            Seal(b"another", 1, 0).sealed(stop),
            Seal(KEY, 0, 1).sealed(stop),  # our own line, sent back
            first.replace(b"15", b"09"),
            b"1" * 30 + first,
            cut + seal.sealed(stop),
        ]
        other.sendall(b"".join([*forged, third, third, first]))
        with NodeLink(0, 2, {1: (here, Seal(KEY, 0, 1))}) as link:
            # What follows a line that was cut off is read, and no line twice or out of turn.
            assert link.receive() == [json.loads(stop)]
