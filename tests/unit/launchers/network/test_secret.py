"""Only who knows the run's secret joins the nodes, and the nodes find it where none was set."""

from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from support.command_line import until

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.preflight import preflight
from efficientbench.launchers.network.secret import FILE_NAME, shared_secret

SECRET = b"what all nodes of the run know"


def started(cluster: Cluster) -> Future[NodeLink]:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(preflight, cluster, 60)
    finally:
        pool.shutdown(wait=False)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_stranger_joins_neither_by_greeting_nor_by_replay(port: int) -> None:
    master = started(Cluster(2, 0, "127.0.0.1", port, secret=SECRET))
    until(lambda: listening(port), "node 0 listens")

    def answers(*lines: str) -> list[str]:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            stream = stranger.makefile("rw", encoding="ascii")
            found = []
            for line in lines:
                stream.write(f"{line}\n")
                stream.flush()
                found.append(stream.readline())
            return found

    assert answers("efficientbench 2 1") == [""]
    challenge, refused = answers("efficientbench 2 1 0000", "0" * 64)
    assert challenge.startswith("challenge ")
    assert "EFFICIENTBENCH_SECRET" in refused
    # Node 0's own proof, sent back.
    assert "go" not in answers("efficientbench 2 1 0000", challenge.split()[2])[1].split()
    node = started(Cluster(2, 1, "127.0.0.1", port, secret=SECRET))
    with master.result(60) as first, node.result(60) as second:
        second.send("prepared")
        assert first.wait_for("prepared", [1], 10)[1]["node"] == 1


def test_a_node_0_without_the_secret_is_refused(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        node = started(Cluster(2, 1, "127.0.0.1", port, secret=SECRET))
        connection, _ = listener.accept()
        with connection:
            connection.recv(200)
            connection.sendall(f"challenge 0000 {'0' * 64}\n".encode())
            connection.recv(200)
            connection.sendall(b"go\n")
            with pytest.raises(LaunchError, match="does not know this node's secret"):
                node.result(60)


def test_nodes_with_different_secrets_report_the_mismatch(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    master = started(Cluster(2, 0, "127.0.0.1", port, secret=SECRET))
    with pytest.raises(LaunchError, match="EFFICIENTBENCH_SECRET or the output folder differs between node 0 and node"):
        preflight(Cluster(2, 1, "127.0.0.1", port, secret=b"another"), 60)
    assert "refused a node at ::ffff:127.0.0.1: EFFICIENTBENCH_SECRET" in capfd.readouterr().err
    preflight(Cluster(2, 1, "127.0.0.1", port, secret=SECRET), 60)
    master.result(60)


def test_the_secret_is_read_from_the_environment() -> None:
    environ = {"MASTER_ADDR": "a", "WORLD_SIZE": "2", "RANK": "0", "EFFICIENTBENCH_SECRET": SECRET.decode()}
    cluster = Cluster.from_environment(environ)
    assert cluster.secret == SECRET
    assert SECRET.decode() not in repr(cluster)
    with pytest.raises(LaunchError, match="EFFICIENTBENCH_SECRET has 5 characters: 16 or more"):
        Cluster.from_environment({**environ, "EFFICIENTBENCH_SECRET": "short"})


def test_all_nodes_share_one_secret_in_the_runs_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(shared_secret, [tmp_path / "suite"] * 8))
    assert len(found) == 1
    assert len(found.pop()) == 64
    assert stat.S_IMODE((tmp_path / "suite" / FILE_NAME).stat().st_mode) == 0o600
    assert shared_secret(tmp_path / "other") != shared_secret(tmp_path / "suite")


def test_a_link_in_place_of_the_secret_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    known = tmp_path / "known"
    known.write_text("what a stranger knows as well")
    (tmp_path / FILE_NAME).symlink_to(known)
    with pytest.raises(LaunchError, match=r"cannot be used: .*EFFICIENTBENCH_SECRET"):
        shared_secret(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(LaunchError, match="is not a file of this user"):
        shared_secret(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    shared_secret(tmp_path)
    (tmp_path / FILE_NAME).chmod(0o644)
    shared_secret(tmp_path)
    assert "warning: others can read" in capfd.readouterr().err
