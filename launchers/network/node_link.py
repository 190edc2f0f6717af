"""The connection between the launchers of a run's nodes: node 0 holds one to each other node, and forwards messages.

A message is one JSON object on a line, sealed by the run's secret. Every node learns at once of a rank that failed
elsewhere, of a signal that reached only one node, and of a node that is gone. Whoever reads a message checks it: a node
may send anything.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.secret import Seal

LONGEST_BYTES = 1 << 16
"""Most bytes of a line. A node that sends a longer one counts as gone."""
KINDS = ("prepared", "place", "problems", "heartbeats", "failure", "stop", "trouble", "done")
SEND_S = 2.0
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A host that lost its power sends nothing: after about 25 s the kernel closes the connection."""


class NodeLink:
    """One node's end of the connections; a single node has none."""

    def __init__(self, node: int, nodes: int, connections: Mapping[int, tuple[socket.socket, Seal]]) -> None:
        """Take the connections, each with its seal: node 0 has one to every other node, the others one to node 0."""
        self.node, self.nodes = node, nodes
        self._connections = {other: connection for other, (connection, _) in connections.items()}
        self._seals = {other: seal for other, (_, seal) in connections.items()}
        self._received: dict[int, bytes] = dict.fromkeys(connections, b"")
        self._kept: list[dict[str, Any]] = []
        """Messages that came while this node waited for other messages."""
        for connection in self._connections.values():
            connection.settimeout(SEND_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def __enter__(self) -> NodeLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.send("trouble", reason=str(error))
        self.close()

    def own_address(self) -> str:
        """Return this node's address on the connection; only for several nodes, while another one is connected."""
        connection = next(iter(self._connections.values()))
        return str(connection.getsockname()[0]).removeprefix("::ffff:")

    def send(self, kind: str, **content: Any) -> None:
        """Send a message to all other nodes, except those that are gone."""
        self._forward({"kind": kind, "node": self.node, **content}, list(self._connections))

    def receive(self) -> list[dict[str, Any]]:
        """Return what other nodes have sent since the last call, each with its `kind` and `node`.

        The last message of a node whose connection ended without `done` is `gone`.
        """
        messages, self._kept = self._kept, []
        while ready := readable(self._connections.values(), 0):
            for node, connection in list(self._connections.items()):
                if connection in ready:
                    new = self._read(node, connection)
                    messages += new
                    if self.node == 0:
                        for message in new:
                            self._forward(message, [other for other in self._connections if other != message["node"]])
        return messages

    def wait_for(self, kind: str, nodes: Iterable[int], time_limit_s: float | None = None) -> dict[int, dict[str, Any]]:
        """Return the next message of this kind from each of these nodes; keep all other messages for `receive`.

        Raises:
            LaunchError: a node has ended without sending it, or has not sent it within the limit (None: no limit).
        """
        deadline_s = None if time_limit_s is None else time.monotonic() + time_limit_s
        missing = set(nodes)
        found: dict[int, dict[str, Any]] = {}
        others: list[dict[str, Any]] = []
        while True:
            for message in self.receive():
                node = message["node"]
                if node in missing and message["kind"] == kind:
                    found[node] = message
                    missing.remove(node)
                elif node in missing and message["kind"] in ("trouble", "gone", "done"):
                    reason = content(message, "reason", str | None)
                    why = f": {reason}" if reason else ""
                    raise LaunchError(f"node {node} ended before any rank was started{why}")
                else:
                    others.append(message)
            if not missing:
                self._kept = others
                return found
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                names = ", ".join(map(str, sorted(missing)))
                raise LaunchError(f"node {names} sent nothing within {time_limit_s:g} s although it had joined")
            readable(self._connections.values(), left_s)

    def close(self) -> None:
        """Send that this node has done its part, and close the connections."""
        self.send("done")
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _read(self, node: int, connection: socket.socket) -> list[dict[str, Any]]:
        try:
            content = connection.recv(65536)
        except OSError:
            content = b""
        *lines, self._received[node] = (self._received[node] + content).split(b"\n")
        messages: list[dict[str, Any]] = []
        for line in lines:
            # A message that a time limit cut off while it was sent runs into the next one: skip both.
            opened = self._seals[node].opened(line) if len(line) <= LONGEST_BYTES else None
            message = _parsed(opened) if opened is not None else None
            # Node 0 knows who is at the other end; the others receive through node 0.
            sender = {node} if self.node == 0 else set(range(self.nodes)) - {self.node}
            if message is not None and message["node"] in sender:
                messages.append(message)
            else:
                ignored(node, "no message of the node that sent it")
        ended = not content or len(self._received[node]) > LONGEST_BYTES
        if ended or any((each["kind"], each["node"]) == ("done", node) for each in messages):
            connection.close()
            del self._connections[node]
            if ended:
                messages.append({"kind": "gone", "node": node})
        return messages

    def _forward(self, message: Mapping[str, Any], nodes: list[int]) -> None:
        content = json.dumps(message).encode()
        for node in nodes:
            with contextlib.suppress(OSError):
                self._connections[node].sendall(self._seals[node].sealed(content))


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return a message of a known kind with its node; None for any other line."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(message, dict) and message.get("kind") in KINDS and type(message.get("node")) is int
    return message if known else None


def content(message: Mapping[str, Any], key: str, kind: Any) -> Any:
    """Return what a message holds under `key`, as `kind`; None, and a line on stderr, where it is not of this kind."""
    try:
        return TypeAdapter(kind).validate_python(message.get(key))
    except ValidationError as error:
        ignored(message["node"], f"{message['kind']}.{key}: {error.errors()[0]['msg']}")
        return None


def ignored(node: int, reason: str) -> None:
    """Print that a line of a node was ignored, and why."""
    print(f"ignored a line of node {node}: {reason}", file=sys.stderr, flush=True)


def readable(sockets: Iterable[socket.socket], wait_s: float | None) -> list[socket.socket]:
    """Return the sockets that have something to read; wait up to `wait_s` seconds (None: for ever) for one.

    `select.select` would refuse descriptors above 1,023, which a process with many open files has.
    """
    with selectors.PollSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(wait_s) if isinstance(key.fileobj, socket.socket)]
