"""Every pair of nodes is tried before a rank starts, and HCCL listens where it was tried."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.command_line import free_port

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.connectivity import Place, check_connectivity
from efficientbench.launchers.network.interfaces import hccl_address, hccl_port
from efficientbench.launchers.network.preflight import preflight


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def started(
    pool: ThreadPoolExecutor, node: int, nodes: int, port: int, *where: Any, limit_s: float = 60
) -> Future[str]:
    """Start one node, which meets the others and then tries them."""
    cluster = Cluster(nodes, node, "127.0.0.1", port)

    def check() -> str:
        with preflight(cluster, 60) as link:
            return check_connectivity(cluster, link, *where, time_limit_s=limit_s)

    return pool.submit(check)


def test_nodes_that_reach_each_other_pass_and_free_their_port(pool: ThreadPoolExecutor, port: int) -> None:
    nodes = [started(pool, node, 4, port) for node in (3, 1, 0, 2)]
    assert [node.result(timeout=90) for node in nodes] == ["127.0.0.1"] * 4
    with socket.socket() as free_again:
        free_again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free_again.bind(("127.0.0.1", port))
        free_again.listen()


def test_nodes_listen_at_the_backends_address(pool: ThreadPoolExecutor, port: int) -> None:
    base = free_port()
    # Addresses of their own on one machine, and one port, as HCCL takes it.
    nodes = [started(pool, node, 3, port, f"127.0.0.{11 + node}", base) for node in range(3)]
    assert [node.result(timeout=90) for node in nodes] == ["127.0.0.11", "127.0.0.12", "127.0.0.13"]


def test_a_taken_port_is_named_on_every_node(pool: ThreadPoolExecutor, port: int) -> None:
    with socket.create_server(("127.0.0.12", 0)) as other:
        base = other.getsockname()[1]
        nodes = [started(pool, node, 3, port, f"127.0.0.{11 + node}", base) for node in range(3)]
        for node in nodes:
            with pytest.raises(
                LaunchError, match=rf"port {base} of 127\.0\.0\.12 on node 1 is taken by another process"
            ):
                node.result(timeout=90)


def test_an_address_of_another_host_is_named_on_every_node(pool: ThreadPoolExecutor, port: int) -> None:
    nodes = [started(pool, 0, 2, port), started(pool, 1, 2, port, "192.0.2.77", 60000)]
    for node in nodes:
        with pytest.raises(LaunchError, match=r"port 60000 of 192\.0\.2\.77 on node 1 cannot be used: Cannot assign"):
            node.result(timeout=90)


def node_elsewhere(cluster: Cluster, place: Place) -> Any:
    """A node that announces a place where it does not listen; returns what the others found."""
    others = [node for node in range(cluster.nodes) if node != cluster.node_rank]
    with preflight(cluster, 60) as link:
        link.send("place", place=asdict(place))
        link.wait_for("place", others, 60)
        link.send("problems", problems=[])
        return link.wait_for("problems", others, 60)


def test_an_unreachable_pair_is_named_on_every_node(pool: ThreadPoolExecutor, port: int) -> None:
    closed = free_port()
    nodes = [started(pool, node, 3, port) for node in (0, 1)]
    third = pool.submit(node_elsewhere, Cluster(3, 2, "127.0.0.1", port), Place(2, "127.0.0.15", closed))
    for future in nodes:
        with pytest.raises(LaunchError) as error:
            future.result(timeout=90)
        for node in (0, 1):
            assert f"node {node} cannot reach node 2 at 127.0.0.15:{closed} (Connection refused)" in str(error.value)
    assert sorted(third.result(timeout=90)) == [0, 1]


def test_a_wrong_node_at_the_address_is_recognised(pool: ThreadPoolExecutor, port: int) -> None:
    with socket.create_server(("127.0.0.16", 0)) as other:
        place = Place(1, "127.0.0.16", other.getsockname()[1])

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"node 7\n")

        threading.Thread(target=answer, daemon=True).start()
        first = started(pool, 0, 2, port)
        pool.submit(node_elsewhere, Cluster(2, 1, "127.0.0.1", port), place)
        with pytest.raises(LaunchError, match=r"\(node 7 answers there: give the nodes addresses of their own\)"):
            first.result(timeout=90)


@pytest.mark.parametrize("ends", [False, True])
def test_a_node_lost_during_the_check_is_named(pool: ThreadPoolExecutor, port: int, ends: bool) -> None:
    nodes = [started(pool, node, 3, port, limit_s=1.0) for node in (0, 1)]
    with preflight(Cluster(3, 2, "127.0.0.1", port), 60) as link:
        if ends:
            link.close()
        named = "node 2 ended before any rank was started" if ends else "node 2 sent nothing within 1 s"
        for node in nodes:
            with pytest.raises(LaunchError, match=f"{named}|node 0 ended before any rank was started: {named}"):
                node.result(timeout=90)


@pytest.mark.parametrize("names", ["lo", "=lo", "l", "eth9,lo", "=eth9,lo"])
def test_hccls_address_is_that_of_the_named_interface(names: str) -> None:
    if "lo" not in psutil.net_if_addrs():
        pytest.skip("this machine's loopback has another name")
    assert hccl_address({"HCCL_SOCKET_IFNAME": names}) == "127.0.0.1"


def test_the_loopback_is_the_last_choice_among_allowed_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "net1": "10.0.0.7"}
    found = {name: [SimpleNamespace(family=socket.AF_INET, address=each)] for name, each in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    assert hccl_address({"HCCL_SOCKET_IFNAME": "^bond"}) == "10.0.0.7"
    assert hccl_address({"HCCL_SOCKET_IFNAME": "^net"}) == "172.17.0.1"
    assert hccl_address({"HCCL_SOCKET_IFNAME": "bond"}) is None
    assert hccl_address({"HCCL_IF_IP": "10.0.0.9", "HCCL_SOCKET_IFNAME": "net"}) == "10.0.0.9"
    assert hccl_address({}) is None


def test_hccls_port_comes_from_the_environment_or_is_refused() -> None:
    assert hccl_port({}) == 60000
    assert hccl_port({"HCCL_IF_BASE_PORT": "50000"}) == 50000
    assert hccl_port({"HCCL_IF_BASE_PORT": "50000", "HCCL_HOST_SOCKET_PORT_RANGE": "auto"}) is None
    for wrong in ("80", "sixty"):
        with pytest.raises(LaunchError, match=f"HCCL_IF_BASE_PORT is '{wrong}': a whole number from 1024 to 65520"):
            hccl_port({"HCCL_IF_BASE_PORT": wrong})
