"""The network interface that ranks are told to use is there, and leads to the other nodes.

The backends themselves say of a wrong one that a device was not found, or wait in vain for peers that were given an
address of this host's loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

import psutil

from efficientbench.launchers.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Takes whole names, separated by commas."""
BY_PREFIX = ("NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
"""Take beginnings of names, of which one has to be there; a leading `=` makes them whole, a leading `^` those to leave
out."""
LOOPBACK = "lo"


def check_interfaces(environ: Mapping[str, str], cluster: Cluster | None) -> None:
    """Raises LaunchError where a variable names interfaces that this node lacks, or its loopback for several hosts."""
    present = [name for _, name in socket.if_nameindex()]
    for variable in (GLOO_INTERFACE, *BY_PREFIX):
        value = environ.get(variable, "").strip()
        if not value:
            continue
        left_out, whole, names = _parsed(value, variable)
        missing = [name for name in names if not _matching(name, present, whole)]
        enough = not missing or (variable != GLOO_INTERFACE and missing != names)
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


def gloo_interface(environ: Mapping[str, str], cluster: Cluster) -> str | None:
    """The interface to name to gloo, which else listens where this host's own name leads; None: it needs no name.

    On many machines that is the loopback (Debian writes so into /etc/hosts), where no other host finds the rank.
    """
    if environ.get(GLOO_INTERFACE, "").strip() or _on_loopback(cluster):
        return None
    try:
        own = {address[0] for *_, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)}
    except OSError:
        own = set()
    if any(not ipaddress.ip_address(address).is_loopback for address in own):
        return None
    towards_master = _address_towards(cluster)
    found = psutil.net_if_addrs().items()
    return next((name for name, each in found if towards_master in {address.address for address in each}), None)


def _address_towards(cluster: Cluster) -> str | None:
    """This node's address on the way to the master; no packet is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((cluster.master_address, cluster.master_port))
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return None


def _parsed(value: str, variable: str) -> tuple[bool, bool, list[str]]:
    """Whether the names are those to leave out, whether they are whole, and the names."""
    if variable == GLOO_INTERFACE:
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
