"""Interfaces that the environment names: those that are not there, or lead nowhere, are named before a run begins."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import pytest

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.interfaces import check_interfaces, gloo_interface

ELSEWHERE = Cluster(2, 1, "192.0.2.1", 29500)
HERE = Cluster(2, 1, "127.0.0.1", 29500)


@pytest.fixture(autouse=True)
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "ib0")])


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"GLOO_SOCKET_IFNAME": ""},
        {"GLOO_SOCKET_IFNAME": "eth0"},
        {"GLOO_SOCKET_IFNAME": "eth0,ib0"},
        {"NCCL_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "=ib0"},
        {"NCCL_SOCKET_IFNAME": "ens,ib"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_SOCKET_IFNAME": "^=docker0"},
        {"HCCL_SOCKET_IFNAME": "ib0"},
    ],
)
def test_working_interfaces_are_accepted(environ: dict[str, str]) -> None:
    for cluster in (None, HERE, ELSEWHERE):
        check_interfaces(environ, cluster)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"GLOO_SOCKET_IFNAME": "eth"},
            "GLOO_SOCKET_IFNAME is 'eth', and node 1 has no interface eth: it has lo, eth0, ib0",
        ),
        ({"GLOO_SOCKET_IFNAME": "eth0,eth1"}, "has no interface eth1"),
        ({"NCCL_SOCKET_IFNAME": "=ib"}, "NCCL_SOCKET_IFNAME is '=ib', and node 1 has no interface ib"),
        ({"NCCL_SOCKET_IFNAME": "ens,eno"}, "no interface ens or eno"),
        ({"HCCL_SOCKET_IFNAME": "ens"}, "no interface ens"),
    ],
)
def test_missing_interfaces_are_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError) as error:
        check_interfaces(environ, ELSEWHERE)
    assert message in str(error.value)
    with pytest.raises(LaunchError, match="this machine has no interface"):
        check_interfaces(environ, None)


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_the_loopback_is_refused_for_several_hosts(variable: str) -> None:
    check_interfaces({variable: "lo"}, None)
    check_interfaces({variable: "lo"}, HERE)
    with pytest.raises(LaunchError, match=f"{variable} is 'lo', the loopback of node 1"):
        check_interfaces({variable: "lo"}, ELSEWHERE)


def test_gloo_needs_an_interface_where_the_host_name_resolves_to_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespaces of `tests/end_to_end/test_two_hosts.py` are such hosts."""
    names = {"192.0.2.1": "192.0.2.1", "127.0.0.1": "127.0.0.1", "own": "127.0.1.1"}
    monkeypatch.setattr(socket, "gethostname", lambda: "own")
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: [(2, 1, 6, "", (names[host], 0))])
    monkeypatch.setattr("efficientbench.launchers.network.interfaces._address_towards", lambda cluster: "192.0.2.2")
    addresses = {"lo": [FakeAddress("127.0.0.1")], "ib0": [FakeAddress("fe80::1"), FakeAddress("192.0.2.2")]}
    monkeypatch.setattr("efficientbench.launchers.network.interfaces.psutil.net_if_addrs", lambda: addresses)
    assert gloo_interface({}, ELSEWHERE) == "ib0"
    assert gloo_interface({}, HERE) == "lo"
    assert gloo_interface({"GLOO_SOCKET_IFNAME": "eth0"}, ELSEWHERE) is None
    names["own"] = "192.0.2.2"
    assert gloo_interface({}, ELSEWHERE) is None


@dataclass
class FakeAddress:
    address: str
