"""The network interface that ranks are told to use is there, and leads to the other nodes.

The backends themselves say of a wrong one that a device was not found, or wait in vain for peers that were given an
address of this host's loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from launchers.cluster_env import Cluster
from launchers.errors import LaunchError

EXACT = "GLOO_SOCKET_IFNAME"
"""Takes whole names, separated by commas."""
BY_PREFIX = ("NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
"""Take beginnings of names, of which one has to be there; a leading `=` makes them whole, a leading `^` those to leave
out."""
LOOPBACK = "lo"


def check_interfaces(environ: Mapping[str, str], cluster: Cluster | None) -> None:
    """Raises LaunchError where a variable names interfaces that this node lacks, or its loopback for several hosts."""
    present = [name for _, name in socket.if_nameindex()]
    for variable in (EXACT, *BY_PREFIX):
        value = environ.get(variable, "").strip()
        if not value:
            continue
        left_out, whole, names = _parsed(value, variable)
        missing = [name for name in names if not _matching(name, present, whole)]
        enough = not missing or (variable != EXACT and missing != names)
        if not enough and not left_out:
            where = f"node {cluster.node_rank}" if cluster is not None else "this machine"
            raise LaunchError(
                f"{variable} is {value!r}, and {where} has no interface {' or '.join(missing)}: it has "
                f"{', '.join(present)}"
            )
        if not left_out and names == [LOOPBACK] and cluster is not None and not _on_loopback(cluster):
            raise LaunchError(
                f"{variable} is {value!r}, by which node {cluster.node_rank} reaches itself alone, and MASTER_ADDR "
                f"{cluster.master_address} is elsewhere: name the interface that leads to the other nodes, of "
                f"{', '.join(name for name in present if name != LOOPBACK)}"
            )


def _parsed(value: str, variable: str) -> tuple[bool, bool, list[str]]:
    """Whether the names are those to leave out, whether they are whole, and the names."""
    if variable == EXACT:
        return False, True, value.split(",")
    names = value.lstrip("^=")
    signs = value[: len(value) - len(names)]
    return "^" in signs, "=" in signs, names.split(",")


def _matching(name: str, present: list[str], whole: bool) -> list[str]:
    return [each for each in present if (each == name if whole else each.startswith(name))]


def _on_loopback(cluster: Cluster) -> bool:
    """Whether all nodes are this host: two launchers on one machine meet on its loopback."""
    if cluster.nodes == 1:
        return True
    try:
        found = socket.getaddrinfo(cluster.master_address, None, type=socket.SOCK_STREAM)
    except OSError:
        # The preflight tells that.
        return True
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)
