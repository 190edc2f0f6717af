"""Brings all nodes of a run together at the master's port before any of them loads torch, or names the missing one.

Node 0 listens at MASTER_PORT. Every other node connects and sends `efficientbench <nodes> <node rank> <nonce>`. Node 0
answers `challenge <nonce> <code>`, and the node sends its own code: both prove that they know the run's secret, each by
the other's nonce. The node waits for `go`, which node 0 sends once all are there. Node 0 refuses any other greeting and
keeps waiting. Then nobody listens at the port, so that the training can; the connections stay, as the link between the
nodes' launchers, and the nonces make the key that seals its lines.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import socket
import sys
import time
from typing import TypeAlias

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.greetings import MOST_GREETINGS, Claim, Greetings
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.secret import SECRET_NAME, Seal, own_nonce

Arrived: TypeAlias = dict[int, tuple[socket.socket, Seal]]
"""Node → the connection to it, and the seal of its lines."""
RETRY_S = 0.2
PROGRESS_S = 30.0
GREETING, CHALLENGE = "efficientbench", "challenge"
LONGEST_ANSWER_BYTES = 300


def preflight(cluster: Cluster, time_limit_s: float | None = None) -> NodeLink:
    """Return the link between the nodes once every node of the run has reached node 0.

    `time_limit_s`: seconds until all nodes must have met; None: the cluster's `rendezvous_timeout_s`.

    Raises:
        LaunchError: nodes did not meet within the limit; the message names the host, the port or the missing nodes.
    """
    if cluster.nodes == 1:
        return NodeLink(0, 1, {})
    if time_limit_s is None:
        time_limit_s = cluster.rendezvous_timeout_s
    deadline_s = time.monotonic() + time_limit_s
    if cluster.node_rank == 0:
        return NodeLink(0, cluster.nodes, _gather(cluster, deadline_s, time_limit_s))
    return NodeLink(cluster.node_rank, cluster.nodes, {0: _check_in(cluster, deadline_s, time_limit_s)})


def _gather(cluster: Cluster, deadline_s: float, time_limit_s: float) -> Arrived:
    """On node 0: wait for every other node, and return the connections to them."""
    arrived: Arrived = {}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_open_listener(cluster))
        # Unless all nodes arrive, their connections are closed.
        waiting = stack.enter_context(contextlib.ExitStack())
        _warn_if_elsewhere(cluster)
        greetings = Greetings(listener, waiting)
        printed_s = time.monotonic()
        while len(arrived) < cluster.nodes - 1:
            for rank in [rank for rank, (connection, _) in arrived.items() if not _is_open(connection)]:
                del arrived[rank]
            missing = [str(rank) for rank in range(1, cluster.nodes) if rank not in arrived]
            if time.monotonic() > deadline_s:
                raise LaunchError(
                    f"node {', '.join(missing)} of {cluster.nodes} did not reach {_place(cluster)} within "
                    f"{time_limit_s:g} s: see what it prints, and whether this port is open between the nodes"
                )
            if time.monotonic() > printed_s + PROGRESS_S:
                printed_s = time.monotonic()
                print(f"waiting at {_place(cluster)} for node {', '.join(missing)}", file=sys.stderr, flush=True)
            for connection, line, claim in greetings.complete(RETRY_S):
                if claim is not None:
                    _admit(connection, line, claim, cluster, arrived)
                elif (claimed := _challenge(connection, line, cluster)) is not None:
                    greetings.expect(connection, claimed)
        for connection, seal in arrived.values():
            # The link notices a node that has gone in the meantime.
            with contextlib.suppress(OSError):
                connection.sendall(seal.sealed(b"go"))
        for connection, _ in arrived.values():
            connection.setblocking(True)
        waiting.pop_all()
    return arrived


def _challenge(connection: socket.socket, line: str, cluster: Cluster) -> Claim | None:
    """Answer a node's greeting, and return what it claims; close the connection of anybody else."""
    match line.split():
        case [greeting, nodes, rank, nonce] if greeting == GREETING and nodes.isdecimal() and rank.isdecimal():
            own = own_nonce()
            claim = Claim(int(nodes), int(rank), f"{nonce} {own}")
            with contextlib.suppress(OSError):
                connection.sendall(f"{CHALLENGE} {own} {claim.code(cluster.secret, 'master')}\n".encode("ascii"))
                return claim
    # Port scanners and the like.
    connection.close()
    return None


def _admit(connection: socket.socket, proof: str, claim: Claim, cluster: Cluster, arrived: Arrived) -> None:
    """Add the node behind a connection, or refuse it: whoever reaches the port must not end the run."""
    problem: str | None
    if not hmac.compare_digest(proof.encode(), claim.code(cluster.secret, "node").encode()):
        problem = f"{SECRET_NAME} or the output folder differs between node 0 and node {claim.node_rank}"
    else:
        problem = _contradiction(claim.nodes, claim.node_rank, cluster, arrived)
    if problem is None:
        arrived[claim.node_rank] = connection, claim.seal(cluster.secret, 0, claim.node_rank)
        return
    with contextlib.suppress(OSError):
        print(f"refused a node at {connection.getpeername()[0]}: {problem}", file=sys.stderr, flush=True)
        connection.sendall(f"{problem}\n".encode("ascii"))
    connection.close()


def _contradiction(nodes: int, node_rank: int, cluster: Cluster, arrived: Arrived) -> str | None:
    """Return in what a node contradicts this node or another one; None where it does not."""
    if nodes != cluster.nodes:
        return f"WORLD_SIZE is {cluster.nodes} on node 0 and {nodes} on node {node_rank}"
    if not 1 <= node_rank < cluster.nodes or (node_rank in arrived and _is_open(arrived[node_rank][0])):
        return f"RANK is {node_rank} on two nodes, and every node needs its own"
    return None


def _is_open(connection: socket.socket) -> bool:
    """Return whether the other side, which sends nothing while it waits, still holds the connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _check_in(cluster: Cluster, deadline_s: float, time_limit_s: float) -> tuple[socket.socket, Seal]:
    """On every other node: reach node 0, wait for its `go`, and return the connection and the seal of its lines."""
    printed_s = time.monotonic()
    problem = "no attempt was made"
    while time.monotonic() < deadline_s:
        try:
            found = _ask(cluster, deadline_s)
        except OSError as error:
            problem = _described(error, cluster)
        else:
            if found is not None:
                return found
            problem = "node 0 closed the connection before all nodes were there"
        if time.monotonic() > printed_s + PROGRESS_S:
            printed_s = time.monotonic()
            print(f"waiting for node 0 at {_place(cluster)}: {problem}", file=sys.stderr, flush=True)
        time.sleep(RETRY_S)
    raise LaunchError(
        f"node {cluster.node_rank} could not meet node 0 at {_place(cluster)} within {time_limit_s:g} s: {problem}"
    )


def _ask(cluster: Cluster, deadline_s: float) -> tuple[socket.socket, Seal] | None:
    """Return a connection to node 0 once it says `go`, and its seal; None where it closed the connection.

    Raises:
        LaunchError: node 0 refuses this node.
    """
    left_s = max(0.1, deadline_s - time.monotonic())
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(
            socket.create_connection((cluster.master_address, cluster.master_port), timeout=min(10.0, left_s))
        )
        nonce = own_nonce()
        connection.sendall(f"{GREETING} {cluster.nodes} {cluster.node_rank} {nonce}\n".encode("ascii"))
        connection.settimeout(max(0.1, deadline_s - time.monotonic()))
        if not (answer := _read_line(connection)):
            return None
        match answer.split():
            case [challenge, other, proof] if challenge == CHALLENGE:
                claim = Claim(cluster.nodes, cluster.node_rank, f"{nonce} {other}")
            case _:
                raise LaunchError(f"somebody else than node 0 answers at {_place(cluster)}: {answer[:80]!r}")
        connection.sendall(f"{claim.code(cluster.secret, 'node')}\n".encode("ascii"))
        if not (answer := _read_line(connection)):
            return None
        seal = claim.seal(cluster.secret, cluster.node_rank, 0)
        if not hmac.compare_digest(proof.encode(), claim.code(cluster.secret, "master").encode()):
            raise LaunchError(
                f"whoever answers at {_place(cluster)} does not know this node's secret: {answer[:200]!r}"
            )
        if seal.opened(answer.encode()) != b"go":
            raise LaunchError(f"node 0 at {_place(cluster)} refuses this node: {answer}")
        stack.pop_all()
    return connection, seal


def _read_line(connection: socket.socket) -> str:
    """Return one line, and read no byte more: what follows belongs to the link between the launchers."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST_ANSWER_BYTES and (byte := connection.recv(1)):
        line += byte
    return line.decode("ascii", errors="replace").strip()


def _open_listener(cluster: Cluster) -> socket.socket:
    """Return a socket that listens at MASTER_PORT on all of this node's addresses."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    address = ("", cluster.master_port)
    try:
        # Where strangers fill the backlog, the system drops a node's attempt, which tries again after seconds.
        listener = socket.create_server(
            address, family=family, backlog=cluster.nodes + MOST_GREETINGS, dualstack_ipv6=both
        )
    except OSError as error:
        what = "is taken by another process" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise LaunchError(f"port {cluster.master_port} {what} on node 0: set MASTER_PORT on all nodes") from error
    listener.setblocking(False)
    return listener


def _warn_if_elsewhere(cluster: Cluster) -> None:
    """Warn of a MASTER_ADDR that is not this node's own; it may be a forwarding service, so it is no error."""
    try:
        found = socket.getaddrinfo(cluster.master_address, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LaunchError(f"MASTER_ADDR {cluster.master_address!r} does not resolve: {error.strerror}") from error
    for family, _, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0))
            return
    print(
        f"warning: MASTER_ADDR {cluster.master_address} ({found[0][4][0]}) is not an address of this node, which has "
        "RANK 0: the other nodes may connect to another host",
        file=sys.stderr,
        flush=True,
    )


def _described(error: OSError, cluster: Cluster) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host {cluster.master_address!r} does not resolve ({error.strerror})"
    if isinstance(error, ConnectionRefusedError):
        return f"port {cluster.master_port} is closed: node 0 is not listening (yet)"
    if isinstance(error, TimeoutError):
        return "no answer: the host is down, or a firewall drops the packets"
    return str(error)


def _place(cluster: Cluster) -> str:
    return f"{cluster.master_address}:{cluster.master_port}"
