"""Chooses and checks the network interface, address and port by which the ranks' backends meet.

For a wrong interface the backends themselves report that a device was not found, or wait in vain for peers that know
this host by an address of its loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

import psutil

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment variable with full names of interfaces, separated by commas."""
HCCL_INTERFACE = "HCCL_SOCKET_IFNAME"
BY_PREFIX = ("NCCL_SOCKET_IFNAME", HCCL_INTERFACE)
"""Environment variables with prefixes of names, one of which must match an interface. A leading `=` makes them full
names, a leading `^` excludes them."""
HCCL_BASE_PORT = 60000
"""First port at which HCCL listens on the host, unless HCCL_IF_BASE_PORT is set; it takes the 15 next ports, too."""
LOOPBACK = "lo"


def check_interfaces(environ: Mapping[str, str], cluster: Cluster | None) -> None:
    """Check the interfaces that variables name for the backends.

    Raises:
        LaunchError: this node lacks an interface, or a variable names its loopback for several hosts.
    """
    present = [name for _, name in socket.if_nameindex()]
    for variable in (GLOO_INTERFACE, *BY_PREFIX):
        value = environ.get(variable, "").strip()
        excludes, whole, names = _parsed(value, variable)
        if not value or excludes:
            continue
        missing = [name for name in names if not any(_fits(each, name, whole) for each in present)]
        enough = not missing or (variable != GLOO_INTERFACE and missing != names)
        if not enough:
            where = f"node {cluster.node_rank}" if cluster is not None else "this machine"
            raise LaunchError(
                f"{variable} is {value!r}, and {where} has no interface {' or '.join(missing)}: it has "
                f"{', '.join(present)}"
            )
        if names == [LOOPBACK] and cluster is not None and not _on_loopback(cluster):
            raise LaunchError(
                f"{variable} is {value!r}, the loopback of node {cluster.node_rank}, and MASTER_ADDR "
                f"{cluster.master_address} is not on it: name the interface to the other nodes, one of "
                f"{', '.join(name for name in present if name != LOOPBACK)}"
            )


def gloo_interface(environ: Mapping[str, str], cluster: Cluster) -> str | None:
    """Return the interface to name to gloo; None where the user has named one, or gloo finds it by itself.

    By itself gloo listens at the address of the host's own name. On many machines that is the loopback (Debian writes
    so into /etc/hosts), where no other host finds the rank. Ranks of one host meet on its loopback, where no other host
    can reach them.
    """
    if environ.get(GLOO_INTERFACE, "").strip():
        return None
    if _on_loopback(cluster):
        return LOOPBACK if LOOPBACK in psutil.net_if_addrs() else None
    try:
        own = {address[0] for *_, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)}
    except OSError:
        own = set()
    if any(not ipaddress.ip_address(address).is_loopback for address in own):
        return None
    towards_master = _address_towards(cluster)
    found = psutil.net_if_addrs().items()
    return next((name for name, each in found if towards_master in {address.address for address in each}), None)


def hccl_address(environ: Mapping[str, str]) -> str | None:
    """Return the address that the user has set for HCCL on this node; None where the choice is ours.

    That is HCCL_IF_IP, else the first address of the interfaces that HCCL_SOCKET_IFNAME allows.
    """
    address = environ.get("HCCL_IF_IP", "").strip()
    value = environ.get(HCCL_INTERFACE, "").strip()
    if address or not value:
        return address or None
    excludes, whole, names = _parsed(value, HCCL_INTERFACE)
    family = socket.AF_INET6 if environ.get("HCCL_SOCKET_FAMILY", "").strip() == "AF_INET6" else socket.AF_INET
    addresses = psutil.net_if_addrs()
    # In HCCL's order: the loopback and docker's bridge, which lead to no other host, come last.
    for interface in sorted(addresses, key=lambda name: (name == LOOPBACK, name.startswith("docker"), name)):
        if any(_fits(interface, name, whole) for name in names) != excludes:
            for each in addresses[interface]:
                if each.family == family:
                    return each.address.partition("%")[0]
    return None


def hccl_port(environ: Mapping[str, str]) -> int | None:
    """Return the first port at which HCCL listens; None where HCCL_HOST_SOCKET_PORT_RANGE names several to try.

    Raises LaunchError: HCCL_IF_BASE_PORT is no port.
    """
    if environ.get("HCCL_HOST_SOCKET_PORT_RANGE", "").strip():
        return None
    value = environ.get("HCCL_IF_BASE_PORT", "").strip() or str(HCCL_BASE_PORT)
    if not value.isdecimal() or not 1024 <= int(value) <= 65520:
        raise LaunchError(f"HCCL_IF_BASE_PORT is {value!r}: a whole number from 1024 to 65520")
    return int(value)


def _address_towards(cluster: Cluster) -> str | None:
    """Return this node's address on the way to the master; no packet is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((cluster.master_address, cluster.master_port))
            return probe.getsockname()[0]
    except OSError:
        return None


def _parsed(value: str, variable: str) -> tuple[bool, bool, list[str]]:
    """Return whether the names are excluded, whether they are full names, and the names."""
    if variable == GLOO_INTERFACE:
        return False, True, value.split(",")
    names = value.lstrip("^=")
    signs = value[: len(value) - len(names)]
    return "^" in signs, "=" in signs, names.split(",")


def _fits(interface: str, name: str, whole: bool) -> bool:
    return interface == name if whole else interface.startswith(name)


def _on_loopback(cluster: Cluster) -> bool:
    """Return whether all nodes are this host: two launchers on one machine meet on its loopback."""
    if cluster.nodes == 1:
        return True
    try:
        found = socket.getaddrinfo(cluster.master_address, None, type=socket.SOCK_STREAM)
    except OSError:
        # The preflight reports that.
        return True
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)
