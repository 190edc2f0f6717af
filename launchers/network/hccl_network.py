"""HCCL's rendezvous over several nodes: what its environment variables say, checked before any rank starts.

Meaning and limits of the variables: HCCL User Guide, "environment variables". HCCL itself tells of a wrong one by a
number in a log file, or by a connection that times out.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from efficientbench.launchers.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.interfaces import LOOPBACK
from efficientbench.launchers.network.ranktable import RankTable, read_rank_table

BASE_PORT = 60000
"""Where HCCL listens on the host, unless HCCL_IF_BASE_PORT says otherwise; it takes the 15 after it, too."""
LIMITS = {
    "HCCL_IF_BASE_PORT": (1024, 65520),
    "HCCL_CONNECT_TIMEOUT": (120, 7200),
    "HCCL_EXEC_TIMEOUT": (0, 2147483647),
    "HCCL_WHITELIST_DISABLE": (0, 1),
}
"""Variable → least and largest value; timeouts are in seconds."""
FAMILIES = {"": socket.AF_INET, "AF_INET": socket.AF_INET, "AF_INET6": socket.AF_INET6}


@dataclass(frozen=True)
class HcclNetwork:
    """What HCCL was told of this node; `address` is None where the choice is left to us."""

    address: str | None
    base_port: int | None
    """None where HCCL_HOST_SOCKET_PORT_RANGE names other ports: HCCL then tries one after another."""
    rank_table: RankTable | None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], cluster: Cluster, ranks_per_node: int) -> HcclNetwork:
        """Raises LaunchError with every variable that is wrong: its value, and what would be right."""
        problems: list[str] = []
        numbers = {name: _number(environ, name, *limits, problems) for name, limits in LIMITS.items()}
        address = _told_address(environ, cluster, problems)
        if numbers["HCCL_WHITELIST_DISABLE"] == 0:
            _check_whitelist(environ, address, problems)
        table = None
        file = environ.get("RANK_TABLE_FILE", "").strip()
        try:
            if file:
                table = read_rank_table(Path(file))
                table.check_ranks(cluster.nodes, ranks_per_node)
        except LaunchError as error:
            problems.append(str(error))
        if problems:
            raise LaunchError(f"node {cluster.node_rank}: " + "; ".join(problems))
        elsewhere = environ.get("HCCL_HOST_SOCKET_PORT_RANGE", "").strip()
        return cls(address, None if elsewhere else numbers["HCCL_IF_BASE_PORT"] or BASE_PORT, table)

    def environment(self, address: str) -> dict[str, str]:
        """Variables for the ranks; `address`: the one by which the other nodes have reached this one.

        Left to itself HCCL takes the first interface by name, which may lead elsewhere.
        """
        return {} if self.address is not None else {"HCCL_IF_IP": address}


def _number(environ: Mapping[str, str], name: str, least: int, largest: int, problems: list[str]) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not least <= int(text) <= largest:
        problems.append(f"{name} is {text!r}: a whole number from {least} to {largest}")
        return None
    return int(text)


def _told_address(environ: Mapping[str, str], cluster: Cluster, problems: list[str]) -> str | None:
    """This node's address as HCCL_IF_IP gives it, else the first of the interfaces that HCCL_SOCKET_IFNAME allows."""
    family = environ.get("HCCL_SOCKET_FAMILY", "").strip()
    if family not in FAMILIES:
        problems.append(f"HCCL_SOCKET_FAMILY is {family!r}: AF_INET or AF_INET6")
        return None
    here = {
        name: [each.address for each in each_of if each.family == FAMILIES[family]]
        for name, each_of in psutil.net_if_addrs().items()
    }
    told = environ.get("HCCL_IF_IP", "").strip()
    if told:
        addresses = [each.address.partition("%")[0] for _, each_of in psutil.net_if_addrs().items() for each in each_of]
        if not _is_address(told):
            problems.append(f"HCCL_IF_IP is {told!r}: an IP address")
        elif told not in addresses:
            present = ", ".join(f"{name} {', '.join(found)}" for name, found in here.items() if found)
            problems.append(
                f"HCCL_IF_IP is {told!r}, which is no address of node {cluster.node_rank}: it has {present}"
            )
        return told
    names = environ.get("HCCL_SOCKET_IFNAME", "").strip()
    if not names:
        return None
    # As HCCL ranks them: the loopback and docker's bridge, which lead to no other host, where nothing else is left.
    ranked = sorted(here, key=lambda name: (name == LOOPBACK, name.startswith("docker"), name))
    allowed = [name for name in ranked if here[name] and _allows(names, name)]
    if not allowed:
        present = ", ".join(name for name in sorted(here) if here[name])
        problems.append(f"HCCL_SOCKET_IFNAME is {names!r}, which fits none of the interfaces here: {present}")
        return None
    return here[allowed[0]][0].partition("%")[0]


def _allows(names: str, interface: str) -> bool:
    """`eth,enp`: beginnings of names; `=eth0`: whole names; `^` before either: all but those."""
    listed = names.lstrip("^=").split(",")
    whole, left_out = "=" in names[:2], names.startswith("^")
    fits = any(interface == each if whole else interface.startswith(each) for each in listed if each)
    return fits != left_out


def _check_whitelist(environ: Mapping[str, str], address: str | None, problems: list[str]) -> None:
    """With HCCL_WHITELIST_DISABLE=0 only nodes that HCCL_WHITELIST_FILE lists may take part."""
    file = environ.get("HCCL_WHITELIST_FILE", "").strip()
    right = 'a JSON file with {"host_ip": ["ADDRESS", …]}, or HCCL_WHITELIST_DISABLE=1'
    try:
        listed = json.loads(Path(file).read_text(encoding="utf-8"))["host_ip"] if file else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(f"HCCL_WHITELIST_FILE is {file!r}, which cannot be used ({error}): {right}")
        return
    if listed is None:
        problems.append(f"HCCL_WHITELIST_DISABLE is 0, and HCCL_WHITELIST_FILE is not set: {right}")
    elif address is not None and address not in listed:
        problems.append(f"HCCL_WHITELIST_FILE: {file} does not list this node's address {address}: {right}")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
