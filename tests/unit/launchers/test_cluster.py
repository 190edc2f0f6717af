"""What a scheduler's environment says of the nodes, and how the nodes find each other before training."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import pytest
from support.command_line import until

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.greetings import GREETING_S
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.preflight import preflight


def test_pai_dlc_variables_name_the_nodes() -> None:
    environ = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "4", "RANK": "3"}
    assert Cluster.from_environment(environ) == Cluster(4, 3, "job-master-0", 23456)


def test_variables_have_aliases_and_a_default_port() -> None:
    environ = {"MASTER_ADDR": "10.0.0.1", "NNODES": "2", "NODE_RANK": "0"}
    assert Cluster.from_environment(environ) == Cluster(2, 0, "10.0.0.1", 29500)


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "gqa",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "2",
    "RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "LOCAL_WORLD_SIZE": "1",
}


def test_torchruns_variables_take_precedence_under_torchrun() -> None:
    others = {"NNODES": "7", "NODE_RANK": "5"}
    assert Cluster.from_environment({**TORCHRUN, **others}) == Cluster(2, 1, "node-0", 29501)
    port = {"EFFICIENTBENCH_TRAINING_PORT": "4001"}
    assert Cluster.from_environment({**TORCHRUN, **port}) == Cluster(2, 1, "node-0", 4001)


def test_several_torchrun_processes_on_a_node_are_refused() -> None:
    with pytest.raises(LaunchError, match="torchrun started 8 processes on this node: give it --nproc-per-node=1"):
        Cluster.from_environment({**TORCHRUN, "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16", "RANK": "9"})


def test_the_join_timeout_of_nodes_comes_from_the_environment(port: int) -> None:
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NNODES": "2", "NODE_RANK": "1"}
    cluster = Cluster.from_environment({**environ, "EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S": "0.4"})
    with pytest.raises(LaunchError, match=f"could not meet node 0 at 127.0.0.1:{port} within 0.4 s"):
        preflight(cluster)
    for wrong in ("0", "-1", "soon", "nan", "inf"):
        with pytest.raises(LaunchError, match=f"EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S is '{wrong}'"):
            Cluster.from_environment({**environ, "EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S": wrong})


@pytest.mark.parametrize(
    ("environ", "messages"),
    [
        ({}, ["MASTER_ADDR is not set", "WORLD_SIZE or NNODES is not set", "RANK or NODE_RANK is not set"]),
        ({"MASTER_ADDR": "a..b", "WORLD_SIZE": "2", "RANK": "0"}, ["MASTER_ADDR is 'a..b'", "no host"]),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "two", "RANK": "0"}, ["WORLD_SIZE is 'two'"]),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "RANK": "2"}, ["RANK is 2", "between 0 and 1"]),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "0", "RANK": "0"}, ["number of nodes is at least 1"]),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "70000"}, ["MASTER_PORT is 70000"]),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "x"}, ["MASTER_PORT is 'x'"]),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "NNODES": "3", "RANK": "0"}, ["WORLD_SIZE=2 and NNODES=3"]),
    ],
)
def test_every_wrong_variable_is_named(environ: dict[str, str], messages: list[str]) -> None:
    with pytest.raises(LaunchError) as error:
        Cluster.from_environment(environ)
    for message in messages:
        assert message in str(error.value)


def started(cluster: Cluster, time_limit_s: float) -> Future[NodeLink]:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(preflight, cluster, time_limit_s)
    finally:
        pool.shutdown(wait=False)


def test_all_nodes_meet(port: int) -> None:
    late_master = threading.Event()
    others = [started(Cluster(3, rank, "127.0.0.1", port), 60) for rank in (1, 2)]
    assert not late_master.wait(0.3), "the others retry while the master is not there yet"
    assert not any(other.done() for other in others)
    preflight(Cluster(3, 0, "127.0.0.1", port), 60)
    for other in others:
        other.result(timeout=60)
    with socket.socket() as free_again:
        free_again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free_again.bind(("", port))
        free_again.listen()


def test_nodes_meet_in_a_process_with_many_open_files(port: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 2048:
        pytest.skip(f"this machine lets a process open {limits[1]} files, no more than select() takes")
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
        while stack.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        other = started(Cluster(2, 1, "127.0.0.1", port), 60)
        with preflight(Cluster(2, 0, "127.0.0.1", port), 60):
            other.result(timeout=60).close()


def test_nodes_wait_until_all_have_arrived(port: int) -> None:
    master = started(Cluster(3, 0, "127.0.0.1", port), 1.5)
    one = started(Cluster(3, 1, "127.0.0.1", port), 2)
    with pytest.raises(LaunchError, match="node 2 of 3 did not reach 127.0.0.1:"):
        master.result(timeout=60)
    with pytest.raises(LaunchError, match=f"could not meet node 0 at 127.0.0.1:{port}"):
        one.result(timeout=60)


def test_a_closed_port_is_named(port: int) -> None:
    with pytest.raises(LaunchError, match=f"port {port} is closed"):
        preflight(Cluster(2, 1, "127.0.0.1", port), 0.3)


def test_an_unknown_host_is_named(port: int) -> None:
    with pytest.raises(LaunchError, match=r"'no-such-host\.invalid' does not resolve"):
        preflight(Cluster(2, 1, "no-such-host.invalid", port), 0.3)
    with pytest.raises(LaunchError, match=r"'no-such-host\.invalid' does not resolve"):
        preflight(Cluster(2, 0, "no-such-host.invalid", port), 0.3)


def test_a_taken_port_is_named_on_the_master() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {taken} is taken"):
            preflight(Cluster(2, 0, "127.0.0.1", taken), 0.3)


def test_a_node_with_another_world_size_is_refused_and_the_others_keep_waiting(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    master = started(Cluster(2, 0, "127.0.0.1", port), 60)
    problem = "WORLD_SIZE is 2 on node 0 and 3 on node 1"
    with pytest.raises(LaunchError, match=problem):
        preflight(Cluster(3, 1, "127.0.0.1", port), 60)
    preflight(Cluster(2, 1, "127.0.0.1", port), 60)
    master.result(timeout=60)
    assert f"refused a node at ::ffff:127.0.0.1: {problem}" in capfd.readouterr().err


def test_a_second_node_with_the_same_rank_is_refused(port: int) -> None:
    master = started(Cluster(3, 0, "127.0.0.1", port), 60)
    twins = [started(Cluster(3, 1, "127.0.0.1", port), 60) for _ in range(2)]
    (refused,), _ = wait(twins, 60, FIRST_COMPLETED)
    assert "RANK is 1 on two nodes" in str(refused.exception())
    preflight(Cluster(3, 2, "127.0.0.1", port), 60)
    for node in (master, *twins):
        if node is not refused:
            node.result(timeout=60)


@pytest.mark.parametrize(
    "sends",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"efficientbench 2 1\n",
        b"efficientbench 99 1 0\n",
        b"efficientbench 2 1 0\nproof\n",
        b"efficientbench 2 -1\n",
        b"efficientbench 2 " + b"9" * 60 + b"\n",
        b"\xff" * 500,
        b"efficient",
        b"",
    ],
)
def test_connections_of_strangers_do_not_disturb_the_rendezvous(port: int, sends: bytes) -> None:
    """Strangers that send nothing, or half a line, and stay connected do no harm either."""
    master = started(Cluster(2, 0, "127.0.0.1", port), 60)
    with contextlib.ExitStack() as stack:
        stack.enter_context(connected(port)).sendall(sends)
        begin_s = time.monotonic()
        for _ in range(30):
            stack.enter_context(connected(port)).sendall(sends)
        preflight(Cluster(2, 1, "127.0.0.1", port), 60)
        master.result(timeout=60)
        # Not one time limit after the other, and no connection that the system drops and tries again later.
        assert time.monotonic() - begin_s < 2 * GREETING_S


def connected(port: int) -> socket.socket:
    """Return a connection to a port at which somebody is about to listen."""
    found: list[socket.socket] = []

    def connects() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            found.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        return bool(found)

    until(connects, "somebody listens")
    return found[0]


def test_one_node_needs_no_rendezvous() -> None:
    preflight(Cluster(1, 0, "no-such-host.invalid", 1), 0.1)
