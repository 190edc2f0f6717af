"""`efficientbench serve` under clients that send by half, idle, do not read, or are too many."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from support.command_line import TIME_LIMIT_S, started, until

from efficientbench.chat.connections import MAX_CONNECTIONS, REQUEST_S, TOLD_EVERY_S
from efficientbench.chat.web import MAX_WAITING

pytestmark = pytest.mark.proof

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def question(*texts: str) -> bytes:
    """The body of a request whose answer takes long; `texts` are the user's and the model's in turn."""
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    return json.dumps({"messages": messages, "stream": True, "max_tokens": 4096, "temperature": 2}).encode()


SHORT = question("7??")
LONG = question("7" * 8000, "8" * 15000, "9" * 8000)
"""The model's first step takes long as well."""


@dataclass
class Server:
    """A server's process, its port, and what it writes to stderr."""

    process: subprocess.Popen[str]
    port: int
    written: list[str] = field(default_factory=list)

    def connect(self, sent: bytes = b"") -> socket.socket:
        """A connection on which something was sent."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=TIME_LIMIT_S)
        client.sendall(sent)
        return client

    def ask(self, body: bytes = SHORT) -> socket.socket:
        """A client that waits for an answer."""
        return self.connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def health(self) -> int:
        """The status of a page that needs no model."""
        answer = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIME_LIMIT_S)
        with contextlib.closing(answer):
            answer.request("GET", "/health")
            return answer.getresponse().status

    def connections(self) -> int:
        """The number of connections that the process holds."""
        return len(psutil.Process(self.process.pid).net_connections("tcp"))


@pytest.fixture(scope="module")
def server(chat_run: Path) -> Iterator[Server]:
    with started("serve", str(chat_run), "--port", "0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        found = re.search(r":(\d+)\n", line)
        assert found is not None, line + process.communicate()[1]
        made = Server(process, int(found[1]))
        reader = threading.Thread(target=made.written.extend, args=[process.stderr], daemon=True)
        reader.start()
        yield made


def status(client: socket.socket) -> int:
    """The status of the answer that a connection gets; 0 where it is closed without one."""
    line = b""
    with contextlib.suppress(ConnectionResetError):
        while not line.endswith(b"\n") and (byte := client.recv(1)):
            line += byte
    return int(line.split()[1]) if line else 0


def rest(client: socket.socket) -> bytes:
    """What a connection still gets until it is closed."""
    content = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            content += part
    return bytes(content)


def test_half_sent_and_idle_connections_are_closed(server: Server) -> None:
    begin_s = time.monotonic()
    kept = server.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status(kept) == 200
    by_half = [
        server.connect(),
        server.connect(b"GET / HT"),
        server.connect(HEAD + b"Content-Length: 100\r\n\r\n{"),
        server.connect(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"),
        # The second request of a connection.
        server.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /"),
    ]

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while True:
                by_half[1].sendall(b"x")
                time.sleep(0.5)

    trickling = threading.Thread(target=trickle)
    trickling.start()
    for client in (kept, *by_half):
        rest(client)
        client.close()
    trickling.join(TIME_LIMIT_S)
    assert time.monotonic() - begin_s > REQUEST_S / 2
    assert server.health() == 200


def test_waiting_requests_beyond_the_limit_are_refused(server: Server) -> None:
    clients = [server.ask() for _ in range(MAX_WAITING + 30)]
    statuses = [status(client) for client in clients]
    for client in clients:
        client.close()
    assert statuses.count(200) + statuses.count(503) == len(clients)
    # One has the model, and each answer that is complete by now made room for one more.
    assert MAX_WAITING + 1 <= statuses.count(200) < len(clients)


def test_the_number_of_connections_is_bounded(server: Server) -> None:
    until(lambda: server.connections() < 20, "the clients of other tests are gone")
    before = server.connections()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(MAX_CONNECTIONS)]
        late = [status(stack.enter_context(server.connect(b"GET /"))) for _ in range(5)]
        assert set(late) <= {503, 0}
        assert server.connections() <= before + MAX_CONNECTIONS + len(late)
        clients[0].close()
        until(lambda: server.health() == 200, "a client in place of one that has left")
    until(lambda: server.connections() < 20, "all have left")


def test_a_lack_of_file_descriptors_is_reported_in_one_line_and_passes(server: Server) -> None:
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 8, limits[1]))
    written, begin_s = len(server.written), time.monotonic()
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(server.connect())
        until(lambda: len(server.written) > written, "a message")
        # It tries again each second.
        time.sleep(3)
    assert server.health() == 200
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
    told = f"warning: no further client can connect until others leave: Too many open files (ulimit -n: {used + 8})\n"
    assert set(server.written[written:]) == {told}
    assert len(server.written) - written <= 1 + (time.monotonic() - begin_s) / TOLD_EVERY_S


def test_invalid_http_writes_no_traceback(server: Server) -> None:
    with server.connect(HEAD.replace(b"json", b"text") + b"Transfer-Encoding: chunked\r\n\r\n") as client:
        assert status(client) == 415
        client.sendall(b"no length\r\n")
        rest(client)
    assert server.health() == 200
    assert "Traceback" not in "".join(server.written)


def test_ctrl_c_ends_the_server_whatever_its_clients_do(server: Server) -> None:
    """This test is the last one: the server ends."""
    clients = [server.connect(), server.connect(b"GET /"), server.connect(HEAD + b"Content-Length: 100\r\n\r\n{")]
    clients += [server.ask(LONG) for _ in range(MAX_WAITING)]
    assert {status(client) for client in clients[3:]} == {200}
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(TIME_LIMIT_S) == 0
    # It has not waited for the end of every answer.
    assert not all(b"[DONE]" in rest(client) for client in clients[3:])
    assert "Traceback" not in "".join(server.written)
