"""HCCL's rendezvous between two hosts, which are network namespaces: who listens where, and who cannot meet whom."""

from __future__ import annotations

import sys

import pytest
from replicas.places import Host, scripts, two_hosts
from support.command_line import environment

NODE = """
import os, sys
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.connectivity import check_connectivity
from efficientbench.launchers.network.interfaces import hccl_address, hccl_port
from efficientbench.launchers.network.preflight import preflight
cluster = Cluster.from_environment(os.environ)
try:
    with preflight(cluster, 90) as link:
        print(check_connectivity(cluster, link, hccl_address(os.environ), hccl_port(os.environ), 90))
except LaunchError as error:
    sys.exit(str(error))
"""
TAKEN = """
import socket, time
other = socket.socket()
other.bind(("", 60000))
other.listen()
print("taken", flush=True)
time.sleep(600)
"""


def outcomes(hosts: tuple[Host, Host], **of_second: str) -> list[tuple[int, str, str]]:
    """Status, output and errors of both nodes; `of_second`: variables that the second node alone has."""
    starts = []
    for rank, host in enumerate(hosts):
        place = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": str(rank)}
        variables = environment(**place, **(of_second if rank else {}))
        starts.append((host.command(sys.executable, "-c", NODE), variables))
    with scripts(*starts) as nodes:
        said = [node.communicate(timeout=240) for node in nodes]
    return [(node.returncode, out, err) for node, (out, err) in zip(nodes, said, strict=True)]


def test_each_host_uses_the_address_at_which_the_other_reached_it() -> None:
    with two_hosts() as hosts:
        for rank, (status, out, err) in enumerate(outcomes(hosts)):
            assert (status, out, err) == (0, f"{hosts[rank].address}\n", "")


@pytest.mark.proof
@pytest.mark.parametrize("interface", ["=lo", "^cable"])
def test_an_isolated_interface_is_named_on_both_hosts(interface: str) -> None:
    with two_hosts() as hosts:
        for status, _, err in outcomes(hosts, HCCL_SOCKET_IFNAME=interface):
            assert status == 1
            assert "node 0 cannot reach node 1 at 127.0.0.1:60000 (node 0 answers there" in err


@pytest.mark.proof
def test_a_port_taken_by_another_process_is_named_on_both_hosts() -> None:
    with two_hosts() as hosts, scripts((hosts[1].command(sys.executable, "-c", TAKEN), environment())) as (other,):
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        for status, _, err in outcomes(hosts):
            assert status == 1
            assert (
                err
                == "nodes cannot reach each other: port 60000 of all addresses on node 1 is taken by another process\n"
            )
        # At another one they meet, where both are told.
        found = outcomes(hosts, HCCL_IF_BASE_PORT="50000")
        assert [status for status, _, _ in found] == [0, 0], found
