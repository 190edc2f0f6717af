"""The server's connections: how many there are, how long a request may take to arrive, and what happens at the limits.

uvicorn limits how long a connection idles between two requests. It waits for ever for the first request, and for the
rest of an incomplete one.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import time
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from efficientbench.launchers.processes.supervision import print_stderr

MAX_CONNECTIONS = 256
"""Most connections: a client that waits for a model has one, and a browser opens up to six."""
REQUEST_S = 15.0
"""Seconds that a request may take to arrive, from the connection or from the answer before it."""
UNREAD_S = 60
"""Seconds that a client may leave unread what was sent to it."""
LAST_ANSWERS_S = 4
"""Seconds that answers may take to end after Ctrl-C."""
QUEUED = 128
"""Connections that the kernel holds until they are accepted."""
TOLD_EVERY_S = 60.0
"""Seconds between two warnings that no connection can be accepted."""
LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` after which asyncio tries again, a second later."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 5\r\n\r\n"


class Connection(H11Protocol):
    """A connection that is closed if its request does not arrive in time, or if there are too many connections."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, or refuse the connection if it is one too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(BUSY)
            transport.close()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for a request."""
        self._watch(arrived=True)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what has arrived; uvicorn calls this after an answer, too, for the next request."""
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            # What arrived is not HTTP, which showed only after its answer had begun.
            self.transport.abort()
        self._watch(arrived=self.conn.their_state not in (h11.IDLE, h11.SEND_BODY))

    def _watch(self, arrived: bool = False) -> None:
        if arrived and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not arrived and self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(REQUEST_S, self.transport.abort)


class Server(uvicorn.Server):
    """A server that keeps running, with a warning, where the process has no descriptor for a further connection."""

    _told_s = float("-inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report errors of `accept` by `_explain`."""
        asyncio.get_running_loop().set_exception_handler(self._explain)
        await super().startup(sockets)
        for each in sockets or ():
            # asyncio calls `accept` as often at once as its own backlog says, and schedules as many retries where that
            # fails: its backlog is 1.
            each.listen(QUEUED)

    def _explain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in LACKING:
            if time.monotonic() - self._told_s > TOLD_EVERY_S:
                self._told_s = time.monotonic()
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                print_stderr(
                    f"warning: no further client can connect until others leave: {error.strerror} (ulimit -n: {limit})"
                )
        elif not self.should_exit:
            # Not for a retry of `accept` that finds the server ended.
            loop.default_exception_handler(context)


def make_server(app: FastAPI) -> Server:
    """Return the server of an application, with the limits above."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_ANSWERS_S,
        backlog=1,
    )
    return Server(config)


def limit_unread(listener: socket.socket) -> None:
    """Let the kernel close connections whose clients read nothing, however little they leave unread."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
