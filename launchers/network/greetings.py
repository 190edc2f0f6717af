"""The first lines of connections at node 0's port, which may come from anybody."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass

from efficientbench.launchers.network.node_link import readable
from efficientbench.launchers.network.secret import Seal, code

GREETING_S = 2.0
"""Seconds that a connection has to send a line."""
GREETING_BYTES = 120
MOST_GREETINGS = 256
"""Connections without a complete line that node 0 keeps at once."""


@dataclass(frozen=True)
class Claim:
    """The number of nodes and the node rank that a node claims, with both nonces."""

    nodes: int
    node_rank: int
    nonces: str

    def code(self, secret: bytes, purpose: str) -> str:
        """Return the word by which a holder of the secret proves it in this conversation, for a purpose."""
        return code(secret, purpose, self.nodes, self.node_rank, self.nonces)

    def seal(self, secret: bytes, own: int, other: int) -> Seal:
        """Return node `own`'s seal for the further lines of its conversation with node `other`."""
        return Seal(self.code(secret, "key").encode(), own, other)


class Greetings:
    """Reads lines of new connections, and lets none of them keep the others waiting."""

    def __init__(self, listener: socket.socket, stack: contextlib.ExitStack) -> None:
        """`stack`: closes the connections."""
        self._listener, self._stack = listener, stack
        self._received: dict[socket.socket, tuple[bytes, float, Claim | None]] = {}
        """Connection → what it has sent, until when its line has to be complete, and what it claims."""

    def expect(self, connection: socket.socket, claim: Claim | None = None) -> None:
        """Wait for the next line of a connection: for its greeting, or for the proof of its claim."""
        self._received[connection] = b"", time.monotonic() + GREETING_S, claim

    def complete(self, wait_s: float) -> list[tuple[socket.socket, str, Claim | None]]:
        """Return the connections that have sent a line, with line and claim; wait up to `wait_s` seconds for one."""
        lines = []
        for ready in readable([self._listener, *self._received], wait_s):
            if ready is self._listener:
                with contextlib.suppress(OSError):
                    connection, _ = self._listener.accept()
                    connection.setblocking(False)
                    self._stack.enter_context(connection)
                    self.expect(connection)
                continue
            before, until_s, claim = self._received[ready]
            try:
                new = ready.recv(GREETING_BYTES)
            except OSError:
                new = b""
            self._received[ready] = before + new, until_s, claim
            if not new or b"\n" in new or len(before + new) >= GREETING_BYTES:
                del self._received[ready]
                lines.append((ready, (before + new).decode("ascii", errors="replace").strip(), claim))
        overdue = [each for each, (_, until_s, _) in self._received.items() if time.monotonic() > until_s]
        # A run's nodes never have so many open at once: the oldest are strangers'.
        for connection in {*overdue, *list(self._received)[:-MOST_GREETINGS]}:
            del self._received[connection]
            connection.close()
        return lines
