"""The line between the launchers of a run's nodes: node 0 holds one connection to each other node, and passes on.

A message is one JSON object on a line. Every node learns at once of a rank that failed elsewhere, of a signal that
reached only one node, and of a node that is gone.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from efficientbench.launchers.errors import LaunchError

LONGEST_BYTES = 1 << 20
SEND_S = 2.0
# A host that lost its power says nothing: after about 25 s its silence is taken for its end.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class NodeLink:
    """One node's end; of a single node, a line to nobody."""

    def __init__(self, node: int, nodes: int, connections: Mapping[int, socket.socket]) -> None:
        """`connections`: of node 0, to every other node; of the others, to node 0."""
        self.node, self.nodes = node, nodes
        self._connections = dict(connections)
        self._received: dict[int, bytes] = dict.fromkeys(connections, b"")
        self._kept: list[dict[str, Any]] = []
        """Messages that came while this node waited for another."""
        for connection in connections.values():
            connection.settimeout(SEND_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def __enter__(self) -> NodeLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.send("trouble", reason=str(error))
        self.close()

    def send(self, kind: str, **content: Any) -> None:
        """Tell all other nodes; one that is gone is told nothing."""
        self._pass_on({"kind": kind, "node": self.node, **content}, list(self._connections))

    def receive(self) -> list[dict[str, Any]]:
        """What other nodes have told since the last call, each with its `kind` and `node`.

        `gone` is the last word of a node whose connection ended without `done`.
        """
        messages, self._kept = self._kept, []
        while readable := select.select(list(self._connections.values()), [], [], 0)[0]:
            for node, connection in list(self._connections.items()):
                if connection in readable:
                    messages += self._read(node, connection)
        if self.node == 0:
            for message in messages:
                self._pass_on(message, [node for node in self._connections if node != message["node"]])
        return messages

    def wait_for(self, kind: str) -> None:
        """Returns once node 0 has said `kind`, however long that takes; nothing else that is said gets lost.

        Raises:
            LaunchError: node 0 has ended without saying it.
        """
        others: list[dict[str, Any]] = []
        while True:
            messages = self.receive()
            for place, message in enumerate(messages):
                if message["node"] == 0 and message["kind"] == kind:
                    self._kept = [*others, *messages[place + 1 :]]
                    return
                if message["node"] == 0 and message["kind"] in ("trouble", "gone", "done"):
                    why = f": {message['reason']}" if "reason" in message else ""
                    raise LaunchError(f"node 0 ended before any rank was started{why}")
                others.append(message)
            select.select(list(self._connections.values()), [], [])

    def close(self) -> None:
        """Say that this node has done its part, and hang up."""
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
        messages = [message for line in lines if (message := _parsed(line)) is not None]
        ended = not content or len(self._received[node]) > LONGEST_BYTES
        if ended or any((each["kind"], each["node"]) == ("done", node) for each in messages):
            connection.close()
            del self._connections[node]
            if ended:
                messages.append({"kind": "gone", "node": node})
        return messages

    def _pass_on(self, message: Mapping[str, Any], nodes: list[int]) -> None:
        line = json.dumps(message).encode() + b"\n"
        for node in nodes:
            with contextlib.suppress(OSError):
                self._connections[node].sendall(line)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    known = isinstance(message, dict) and isinstance(message.get("kind"), str) and isinstance(message.get("node"), int)
    return message if known else None
