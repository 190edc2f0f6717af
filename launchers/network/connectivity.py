"""Checks that every node of a run reaches every other one, and names each pair that does not, on all nodes.

The preflight has shown that all nodes reach node 0. Collectives connect any two nodes, by an address and a port of
their own, and report a pair that cannot connect only after minutes. Here each node listens where its backend will, the
launchers exchange these addresses, each node tries all others, and the launchers exchange the problems.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.node_link import NodeLink, content

TIME_LIMIT_S = 60.0
"""Seconds for each exchange: all nodes come here straight from the preflight."""
TRY_S = 5.0
"""Seconds that a node waits for another node, which listens already."""
POLL_S = 0.2
AT_ONCE = 32


@dataclass(frozen=True)
class Place:
    """The address and port at which a node listens for the others."""

    node: int
    address: str
    port: Annotated[int, Field(ge=0, le=65535)]
    problem: str = ""
    """Why the node cannot listen; empty where it listens."""


def check_connectivity(
    cluster: Cluster,
    link: NodeLink,
    address: str | None = None,
    port: int | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> str:
    """Return this node's address, by which the others have reached it.

    Args:
        cluster: the nodes; more than one.
        link: connection to the launchers of the other nodes.
        address: this node's address, where the user set one for its backend; None: that of `link`.
        port: the port at which its backend will listen; None: any free port.
        time_limit_s: seconds for each of the two exchanges with the other nodes.

    Raises:
        LaunchError: nodes cannot reach each other, or a port is taken; every node gets the same message with all pairs.
    """
    own = address or link.own_address()
    others = [node for node in range(cluster.nodes) if node != cluster.node_rank]
    with _listening(cluster, address, port) as (bound, problem):
        # The others reach node 0 as they just did, unless its backend has an address of its own.
        reached = cluster.master_address if cluster.node_rank == 0 and address is None else own
        link.send("place", place=asdict(Place(cluster.node_rank, reached, bound, problem)))
        places = link.wait_for("place", others, time_limit_s)
        found = {node: content(places[node], "place", Place) for node in others}
        unknown = [f"node {node} did not send where it listens" for node, place in found.items() if place is None]
        tried = _try_all(cluster.node_rank, [place for place in found.values() if place is not None])
        problems = [problem, *unknown, *tried]
        link.send("problems", problems=problems)
        # This node has to listen until all others have tried.
        answers = link.wait_for("problems", others, time_limit_s)
    everyones = {node: content(answers[node], "problems", list[str]) or [] for node in others}
    everyones[cluster.node_rank] = problems
    named = [each for node in sorted(everyones) for each in everyones[node] if each]
    if named:
        raise LaunchError("nodes cannot reach each other: " + "; ".join(named))
    return own


@contextlib.contextmanager
def _listening(cluster: Cluster, address: str | None, port: int | None) -> Iterator[tuple[int, str]]:
    """Send this node's number to whoever connects; yield the port, or 0 and why there is none."""
    try:
        both = address is None and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in (address or "") else socket.AF_INET
        listener = socket.create_server(
            (address or "", port or 0), family=family, backlog=cluster.nodes, dualstack_ipv6=both
        )
    except OSError as error:
        what = "is taken by another process" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        yield 0, f"port {port} of {address or 'all addresses'} on node {cluster.node_rank} {what}"
        return
    stopped = threading.Event()
    thread = threading.Thread(target=_answer, args=(listener, cluster.node_rank, stopped), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], ""
    finally:
        stopped.set()
        thread.join()
        listener.close()


def _answer(listener: socket.socket, node: int, stopped: threading.Event) -> None:
    listener.settimeout(POLL_S)
    while not stopped.is_set():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(f"node {node}\n".encode("ascii"))


def _try_all(node: int, places: list[Place]) -> list[str]:
    """Return why this node cannot reach others; a node that cannot listen reports that itself."""
    listening = [place for place in places if not place.problem]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda place: _try(node, place), listening))


def _try(node: int, place: Place) -> str:
    where = f"node {node} cannot reach node {place.node} at {place.address}:{place.port}"
    try:
        with socket.create_connection((place.address, place.port), timeout=TRY_S) as connection:
            answer = connection.makefile("r", encoding="ascii", errors="replace").readline(40).strip()
    except TimeoutError:
        return f"{where} (no answer within {TRY_S:g} s: a firewall, or another network)"
    except (OSError, ValueError) as error:  # no text that could be a host's name is a ValueError
        return f"{where} ({getattr(error, 'strerror', None) or error})"
    if answer != f"node {place.node}":
        return f"{where} ({answer or 'somebody else'} answers there: give the nodes addresses of their own)"
    return ""
