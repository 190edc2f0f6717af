"""Several nodes: each pair is tried, and HCCL's variables and rank table are checked before a rank starts."""

from __future__ import annotations

import copy
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from efficientbench.launchers.errors import LaunchError
from efficientbench.launchers.network import connectivity as mesh
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.connectivity import Place, check_mesh
from efficientbench.launchers.network.hccl_network import HcclNetwork
from efficientbench.launchers.network.ranktable import read_rank_table


@pytest.fixture
def port() -> int:
    return free_port()


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as holder:
        holder.bind((address, 0))
        return int(holder.getsockname()[1])


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def started(pool: ThreadPoolExecutor, node: int, nodes: int, port: int, *where: Any) -> Future[str]:
    return pool.submit(check_mesh, Cluster(nodes, node, "127.0.0.1", port), *where, time_limit_s=60.0)


def test_nodes_that_reach_each_other_go_on(pool: ThreadPoolExecutor, port: int) -> None:
    nodes = [started(pool, node, 4, port) for node in (3, 1, 0, 2)]
    assert [node.result(timeout=90) for node in nodes] == ["127.0.0.1"] * 4
    with socket.socket() as free_again:
        free_again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free_again.bind(("127.0.0.1", port))
        free_again.listen()


def test_nodes_listen_where_their_backend_will(pool: ThreadPoolExecutor, port: int) -> None:
    base = free_port()
    # Addresses of their own on one machine, and one port, as HCCL takes it.
    nodes = [started(pool, node, 3, port, f"127.0.0.{11 + node}", base) for node in range(3)]
    assert [node.result(timeout=90) for node in nodes] == ["127.0.0.11", "127.0.0.12", "127.0.0.13"]


def test_a_taken_port_is_named_on_every_node(pool: ThreadPoolExecutor, port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.12", 0))
        other.listen()
        base = other.getsockname()[1]
        nodes = [started(pool, node, 3, port, f"127.0.0.{11 + node}", base) for node in range(3)]
        for node in nodes:
            with pytest.raises(
                LaunchError, match=rf"port {base} of 127\.0\.0\.12 on node 1 is taken by another process"
            ):
                node.result(timeout=90)


def silent_node(cluster: Cluster, place: Place) -> Any:
    """A node that tells a place where nobody listens, and hears the verdict."""
    connection = mesh._connect(cluster, time.monotonic() + 60)
    with connection, connection.makefile("rw", encoding="utf-8") as line:
        mesh._send(line, vars(place))
        mesh._receive(line)
        mesh._send(line, [])
        return mesh._receive(line)


def test_a_pair_that_cannot_meet_is_named_on_every_node(pool: ThreadPoolExecutor, port: int) -> None:
    closed = free_port("127.0.0.15")
    nodes = [started(pool, node, 3, port) for node in (0, 1)]
    third = pool.submit(silent_node, Cluster(3, 2, "127.0.0.1", port), Place(2, "127.0.0.15", closed))
    for node, future in enumerate(nodes):
        with pytest.raises(LaunchError) as error:
            future.result(timeout=90)
        assert f"node {node} cannot reach node 2 at 127.0.0.15:{closed} (Connection refused)" in str(error.value)
    assert len(third.result(timeout=90)) == 2


def test_another_node_at_the_address_is_told_from_the_right_one(pool: ThreadPoolExecutor, port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.16", 0))
        other.listen()
        place = Place(1, "127.0.0.16", other.getsockname()[1])

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"node 7\n")

        threading.Thread(target=answer, daemon=True).start()
        first = started(pool, 0, 2, port)
        pool.submit(silent_node, Cluster(2, 1, "127.0.0.1", port), place)
        with pytest.raises(LaunchError, match=r"\(node 7 answers there: give the nodes addresses of their own\)"):
            first.result(timeout=90)


def test_a_node_that_the_preflights_port_took_comes_back(pool: ThreadPoolExecutor, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as closing:
        second = started(pool, 1, 2, port)
        connection, _ = closing.accept()
        connection.close()
    first = started(pool, 0, 2, port)
    assert (first.result(90), second.result(90)) == ("127.0.0.1", "127.0.0.1")


def test_a_node_that_stays_away_is_named(port: int) -> None:
    with pytest.raises(LaunchError, match="node 1, 2 did not come back"):
        check_mesh(Cluster(3, 0, "127.0.0.1", port), time_limit_s=0.5)
    with pytest.raises(LaunchError, match="node 1 lost the others while they tried each other"):
        check_mesh(Cluster(3, 1, "127.0.0.1", port), time_limit_s=0.5)


CLUSTER = Cluster(2, 1, "127.0.0.1", 29500)


def network(**environ: str) -> HcclNetwork:
    return HcclNetwork.from_environment(environ, CLUSTER, 2)


def test_without_variables_the_address_is_the_one_that_was_reached() -> None:
    found = network()
    assert (found.address, found.base_port, found.rank_table) == (None, 60000, None)
    assert found.environment("10.0.0.7") == {"HCCL_IF_IP": "10.0.0.7"}


@pytest.mark.parametrize("names", ["lo", "=lo", "l", "eth9,lo", "=eth9,lo"])
def test_an_interface_that_was_named_gives_the_address(names: str) -> None:
    if "lo" not in psutil.net_if_addrs():
        pytest.skip("this machine's loopback has another name")
    assert network(HCCL_SOCKET_IFNAME=names).address == "127.0.0.1"
    assert network(HCCL_IF_IP="127.0.0.1", HCCL_SOCKET_IFNAME="nothing").address == "127.0.0.1"
    assert network(HCCL_IF_IP="127.0.0.1").environment("10.0.0.7") == {}


def test_a_range_of_ports_replaces_the_base_port() -> None:
    assert network(HCCL_IF_BASE_PORT="50000").base_port == 50000
    assert network(HCCL_IF_BASE_PORT="50000", HCCL_HOST_SOCKET_PORT_RANGE="auto").base_port is None


def test_of_the_interfaces_allowed_the_loopback_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "net1": "10.0.0.7"}
    found = {name: [SimpleNamespace(family=socket.AF_INET, address=each)] for name, each in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    assert network(HCCL_SOCKET_IFNAME="^bond").address == "10.0.0.7"
    assert network(HCCL_SOCKET_IFNAME="^net").address == "172.17.0.1"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"HCCL_IF_BASE_PORT": "80"}, "HCCL_IF_BASE_PORT is '80': a whole number from 1024 to 65520"),
        ({"HCCL_IF_BASE_PORT": "sixty"}, "HCCL_IF_BASE_PORT is 'sixty'"),
        ({"HCCL_CONNECT_TIMEOUT": "10"}, "HCCL_CONNECT_TIMEOUT is '10': a whole number from 120 to 7200"),
        ({"HCCL_EXEC_TIMEOUT": "-1"}, "HCCL_EXEC_TIMEOUT is '-1'"),
        ({"HCCL_WHITELIST_DISABLE": "no"}, "HCCL_WHITELIST_DISABLE is 'no': a whole number from 0 to 1"),
        ({"HCCL_WHITELIST_DISABLE": "0"}, "HCCL_WHITELIST_FILE is not set"),
        ({"HCCL_WHITELIST_DISABLE": "0", "HCCL_WHITELIST_FILE": "/no/file"}, "which cannot be used"),
        ({"HCCL_SOCKET_FAMILY": "IPv4"}, "HCCL_SOCKET_FAMILY is 'IPv4': AF_INET or AF_INET6"),
        ({"HCCL_IF_IP": "node0"}, "HCCL_IF_IP is 'node0': an IP address"),
        ({"HCCL_IF_IP": "192.0.2.77"}, "is no address of node 1: it has"),
        ({"HCCL_SOCKET_IFNAME": "=eth77"}, "fits none of the interfaces here"),
        ({"RANK_TABLE_FILE": "/no/table.json"}, "RANK_TABLE_FILE: /no/table.json cannot be read as JSON"),
    ],
)
def test_every_wrong_variable_is_named(environ: dict[str, str], told: str) -> None:
    with pytest.raises(LaunchError) as error:
        network(**environ)
    assert told in str(error.value)
    assert str(error.value).startswith("node 1: ")


def test_a_whitelist_has_to_list_this_node(tmp_path: Path) -> None:
    file = tmp_path / "whitelist.json"
    variables = {"HCCL_WHITELIST_DISABLE": "0", "HCCL_WHITELIST_FILE": str(file), "HCCL_IF_IP": "127.0.0.1"}
    file.write_text('{"host_ip": ["10.0.0.1"], "device_ip": []}')
    with pytest.raises(LaunchError, match=r"does not list this node's address 127\.0\.0\.1"):
        network(**variables)
    file.write_text('{"host_ip": ["127.0.0.1"]}')
    assert network(**variables).address == "127.0.0.1"


def table(version: str = "1.0", **more: Any) -> dict[str, Any]:
    """Two servers with two NPUs each, as the user guide shows it."""
    servers = [
        {
            "server_id": f"node_{server}",
            "device": [
                {"device_id": str(d), "device_ip": f"192.168.{1 + server}.{8 + d}", "rank_id": str(2 * server + d)}
                for d in range(2)
            ],
        }
        for server in range(2)
    ]
    return {"status": "completed", "version": version, "server_count": "2", "server_list": servers, **more}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    return path


def test_tables_of_both_versions_are_read(tmp_path: Path) -> None:
    found = network(RANK_TABLE_FILE=str(written(tmp_path, table())))
    assert found.rank_table is not None
    assert [server.ranks for server in found.rank_table.servers] == [(0, 1), (2, 3)]
    pods = table("1.2", super_pod_list=[{"super_pod_id": "0", "server_list": [{"server_id": "node_0"}]}])
    for server in pods["server_list"]:
        server["host_ip"] = "172.16.0.110"
        for device in server["device"]:
            device["super_device_id"] = device["rank_id"]
            del device["device_ip"]
    assert read_rank_table(written(tmp_path, pods)).servers[0].host_ip == "172.16.0.110"


def changed(path: str, value: object) -> dict[str, Any]:
    content = copy.deepcopy(table())
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = content
    for step in steps:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return content


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], "has no server_list"),
        ({"group_list": []}, "it is of the older form with group_list"),
        (changed("status", "initializing"), "status is 'initializing'"),
        (changed("version", "2.0"), "version is '2.0': 1.0 or 1.2"),
        (changed("server_count", "3"), "server_count is '3', and server_list has 2"),
        (changed("server_list.0.server_id", ""), "server_list[0].server_id is ''"),
        (changed("server_list.0.server_id", "node_1"), "node_1, node_1 are not all different"),
        (changed("server_list.1.device", []), "server_list[1].device is no list of NPUs"),
        (changed("server_list.1.device.0.device_ip", None), "server_list[1].device[0].device_ip is missing"),
        (changed("server_list.1.device.0.device_ip", "x"), "server_list[1].device[0].device_ip is 'x'"),
        (changed("server_list.1.device.0.rank_id", None), "server_list[1]: every NPU needs a rank_id"),
        (changed("server_list.1.device.0.rank_id", "3"), "are not the numbers from 0 to 3, each once"),
        (changed("server_list.0.host_ip", "host"), "server_list[0].host_ip is 'host'"),
        (changed("server_list", "none"), "server_list is no list of servers"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path: Path, content: object, told: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(LaunchError) as error:
        read_rank_table(path)
    assert told in str(error.value)
    assert str(path) in str(error.value)


def test_a_table_of_another_run_is_refused(tmp_path: Path) -> None:
    found = read_rank_table(written(tmp_path, table()))
    found.check_ranks(2, 2)
    with pytest.raises(LaunchError, match="the run has 2 nodes with 8 ranks each"):
        found.check_ranks(2, 8)
    mixed = changed("server_list.0.device.1.rank_id", "2")
    mixed["server_list"][1]["device"][0]["rank_id"] = "1"
    with pytest.raises(LaunchError, match="no server has the ranks 0 to 1, which are those of node 0"):
        read_rank_table(written(tmp_path, mixed)).check_ranks(2, 2)
