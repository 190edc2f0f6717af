"""Every node of a run reaches every other one, or all of them say which does not, where and why.

That all reach node 0 is known from the preflight. Collectives connect any two nodes, by an address and a port of their
own, and of a pair that cannot meet they tell nothing for minutes. Here each node listens where its backend will, node 0
hands out all places over MASTER_PORT, each node tries all others, and node 0 tells everybody what was found.

Over MASTER_PORT goes a line of JSON at a time: a node's place, all places, what the node could not reach, the verdict.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from efficientbench.launchers.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.preflight import RETRY_S, open_listener

TIME_LIMIT_S = 60.0
"""All nodes come here straight from the preflight."""
TRY_S = 5.0
"""One node's patience with another, which listens already."""
LONGEST_LINE = 1 << 22
AT_ONCE = 32


@dataclass(frozen=True)
class Place:
    """Where a node listens for the others; `problem`: why it cannot."""

    node: int
    address: str
    port: int
    problem: str = ""


def check_mesh(
    cluster: Cluster, address: str | None = None, port: int | None = None, time_limit_s: float = TIME_LIMIT_S
) -> str:
    """Returns this node's address, by which the others have reached it.

    Args:
        cluster: the nodes; more than one.
        address: of this node, where its backend was told one; by default that on which it reaches node 0.
        port: at which its backend will listen; any free one by default.
        time_limit_s: for all of it.

    Raises:
        LaunchError: on every node alike, with each pair of nodes that cannot meet, and each port that is taken.
    """
    deadline_s = time.monotonic() + time_limit_s
    with _answering(cluster, address, port) as (bound, problem):
        exchange = _coordinate if cluster.node_rank == 0 else _take_part
        try:
            own, unreached = exchange(cluster, address, bound, problem, deadline_s)
        except (OSError, ValueError) as error:
            raise LaunchError(
                f"node {cluster.node_rank} lost the others while they tried each other: {error or type(error).__name__}"
            ) from error
    if unreached:
        raise LaunchError("nodes cannot reach each other: " + "; ".join(unreached))
    return own


@contextlib.contextmanager
def _answering(cluster: Cluster, address: str | None, port: int | None) -> Iterator[tuple[int, str]]:
    """Tells whoever connects this node's number; gives the port, or 0 and why there is none."""
    problem, listener = "", None
    try:
        both = address is None and socket.has_dualstack_ipv6()
        six = both or (address is not None and ":" in address)
        listener = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address or "", port or 0))
        listener.listen(cluster.nodes)
    except OSError as error:
        what = "is taken by another process" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        problem = f"port {port} of {address or 'all addresses'} on node {cluster.node_rank} {what}"
    if listener is None or problem:
        yield 0, problem
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
    listener.settimeout(RETRY_S)
    while not stopped.is_set():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(f"node {node}\n".encode("ascii"))


def _coordinate(
    cluster: Cluster, address: str | None, port: int, problem: str, deadline_s: float
) -> tuple[str, list[str]]:
    """Node 0: gathers all places, hands them out, gathers what was found, tells all."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(open_listener(cluster))
        lines: dict[int, io.TextIOWrapper] = {}
        places: dict[int, Place] = {}
        own = address
        while len(lines) < cluster.nodes - 1:
            if time.monotonic() > deadline_s:
                missing = [str(node) for node in range(1, cluster.nodes) if node not in lines]
                raise LaunchError(f"node {', '.join(missing)} did not come back to {cluster.master_address}")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            stack.enter_context(connection)
            connection.settimeout(max(0.1, deadline_s - time.monotonic()))
            line = stack.enter_context(connection.makefile("rw", encoding="utf-8"))
            try:
                place = Place(**_receive(line))
            except (OSError, ValueError, TypeError):
                continue  # a stranger at the port
            lines[place.node], places[place.node] = line, place
            own = own or connection.getsockname()[0].removeprefix("::ffff:")
        own = str(own)
        # The others reach node 0 as they just did, unless its backend was told an address.
        places[0] = Place(0, address or cluster.master_address, port, problem)
        for line in lines.values():
            _send(line, [vars(places[node]) for node in sorted(places)])
        unreached = _try_all(0, list(places.values()))
        for line in lines.values():
            unreached += _receive(line)
        for line in lines.values():
            _send(line, unreached)
    return own, unreached


def _take_part(
    cluster: Cluster, address: str | None, port: int, problem: str, deadline_s: float
) -> tuple[str, list[str]]:
    """Every other node."""
    while True:
        connection = _connect(cluster, deadline_s)
        with connection, connection.makefile("rw", encoding="utf-8") as line:
            own = address or connection.getsockname()[0]
            try:
                _send(line, vars(Place(cluster.node_rank, own, port, problem)))
                places = [Place(**place) for place in _receive(line)]
            except (OSError, ValueError):
                # The preflight's port may have taken the connection just before it closed.
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(RETRY_S)
                continue
            _send(line, _try_all(cluster.node_rank, places))
            return own, _receive(line)


def _connect(cluster: Cluster, deadline_s: float) -> socket.socket:
    while True:
        try:
            left_s = max(0.1, deadline_s - time.monotonic())
            connection = socket.create_connection((cluster.master_address, cluster.master_port), timeout=left_s)
        except OSError:
            # Node 0 opens the port again after the preflight.
            if time.monotonic() > deadline_s:
                raise
            time.sleep(RETRY_S)
        else:
            connection.settimeout(max(0.1, deadline_s - time.monotonic()))
            return connection


def _try_all(node: int, places: list[Place]) -> list[str]:
    """What keeps this node from the others, for people; of its own place what it has told of itself."""
    own = [place.problem for place in places if place.node == node and place.problem]
    others = [place for place in places if place.node != node and not place.problem]
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(others)))) as pool:
        found = pool.map(lambda place: _try(node, place), others)
        return own + [problem for problem in found if problem]


def _try(node: int, place: Place) -> str:
    where = f"node {node} cannot reach node {place.node} at {place.address}:{place.port}"
    try:
        with socket.create_connection((place.address, place.port), timeout=TRY_S) as connection:
            answer = connection.makefile("r", encoding="ascii", errors="replace").readline(40).strip()
    except TimeoutError:
        return f"{where} (no answer within {TRY_S:g} s: a firewall, or another network)"
    except OSError as error:
        return f"{where} ({error.strerror or error})"
    if answer != f"node {place.node}":
        return f"{where} ({answer or 'somebody else'} answers there: give the nodes addresses of their own)"
    return ""


def _send(line: io.TextIOWrapper, content: Any) -> None:
    line.write(json.dumps(content) + "\n")
    line.flush()


def _receive(line: io.TextIOWrapper) -> Any:
    text = line.readline(LONGEST_LINE)
    if not text.endswith("\n"):
        raise ValueError("the connection over MASTER_PORT was closed")
    return json.loads(text)
