"""Serve a chat model at a port, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from pathlib import Path
from typing import NoReturn

from efficientbench.basics.errors import ConfigError
from efficientbench.chat.answers import chat_opened
from efficientbench.chat.connections import limit_unread, make_server
from efficientbench.chat.pool import pool_of
from efficientbench.chat.web import make_app
from efficientbench.config.quantization import Quantization
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.running.rank_process import end

KEY_VARIABLE = "EFFICIENTBENCH_KEY"
SHORTEST_KEY = 16
"""Fewest characters of a key: whoever reaches the server can try all shorter ones."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def serve(
    folder: Path,
    host: str,
    port: int,
    key: str | None,
    models: int,
    step: int | None,
    quantization: Quantization | None = None,
) -> NoReturn:
    """Answer requests with the model of a run's folder until Ctrl-C, and end this process.

    `quantization`: as for `chat_opened`.

    Raises:
        ConfigError: other machines would reach the server without a key, or it cannot listen there.
        ConfigError, CheckpointError, DataError, DeviceError: as `chat_opened`.
    """
    check_key(host, key)
    # Listen first: loading the model takes a while.
    with (
        listening(host, port) as listener,
        chat_opened(folder, step, quantization) as chat,
        pool_of(chat.run, models) as pool,
    ):
        for problem in chat.warnings:
            print_stderr(f"warning: {problem}")
        server = make_server(make_app(chat, pool, key, {host, *LOOPBACK_NAMES}))
        # Answers that Ctrl-C cancels are no errors of the server.
        logging.getLogger("uvicorn.error").addFilter(_is_no_end)
        shown = f"[{host}]" if ":" in host else host
        print(f"{chat.name}, step {chat.run.step:,}: http://{shown}:{listener.getsockname()[1]}", flush=True)
        # uvicorn ends by itself, and raises this afterwards.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
        # Without waiting for the models' threads, which may be in the middle of a long step.
        end(0)


def _is_no_end(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def check_key(host: str, key: str | None) -> None:
    """Raise ConfigError where other machines would reach a server without a key, or the key is not valid."""
    if key is not None and (len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable())):
        raise ConfigError(f"{KEY_VARIABLE}: a key has {SHORTEST_KEY} or more characters, all of ASCII")
    if key is None and not _is_loopback(host):
        raise ConfigError(
            f"--host {host}: other machines may reach it, so it needs a key, like "
            f"{KEY_VARIABLE}=$(openssl rand -hex 16); without one it listens at 127.0.0.1 alone"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ConfigError: it cannot, with the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        # The system's text repeats the address, worded differently for each cause.
        reason = str(error.strerror).partition(" (while")[0]
        if error.errno == errno.EADDRINUSE:
            with socket.create_server((host, 0), family=family) as other:
                reason = f"another program listens there; --port {other.getsockname()[1]} is free"
        raise ConfigError(f"--host {host} --port {port}: {reason}") from None
    limit_unread(listener)
    return listener
