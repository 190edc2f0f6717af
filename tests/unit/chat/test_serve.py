"""Where the server may listen, and with which key."""

from __future__ import annotations

import re
import socket

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.chat.serve import check_key, listening

KEY = "0123456789abcdef"


def test_listening_on_other_interfaces_needs_a_key() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        check_key(host, None)
    for host in ("0.0.0.0", "::", "", "192.168.1.2", "example.org"):
        with pytest.raises(ConfigError, match="it needs a key, like EFFICIENTBENCH_KEY="):
            check_key(host, None)
        check_key(host, KEY)
    for key in ("", KEY[1:], "ключ" * 8, f"{KEY}\n"):
        with pytest.raises(ConfigError, match="16 or more characters"):
            check_key("127.0.0.1", key)


def test_a_port_in_use_is_refused_with_a_free_one() -> None:
    with listening("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            listening("127.0.0.1", port)
    message = str(caught.value)
    assert message.startswith(f"--host 127.0.0.1 --port {port}: another program listens there; --port ")
    found = re.search(r"--port (\d+) is free", message)
    assert found is not None
    with socket.create_server(("127.0.0.1", int(found[1]))):
        pass


def test_the_connection_of_a_client_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficientbench.chat.connections.UNREAD_S", 1)
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        connection.settimeout(60)
        with connection, pytest.raises(TimeoutError, match="Connection timed out"):
            connection.sendall(bytes(64 << 20))


def test_an_address_of_another_machine_is_refused() -> None:
    # RFC 5737: it is nobody's.
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1 --port 0: Cannot assign requested address"):
        listening("192.0.2.1", 0)
    with pytest.raises(ConfigError, match=r"--host a\.\.b --port 0: Name or service not known$"):
        listening("a..b", 0)
