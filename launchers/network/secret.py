"""The secret that a run's nodes share, and what only its holders can write: greetings, and lines between launchers.

All codes are HMAC-SHA256. Lines are authenticated, not encrypted: whoever hears the network can read them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import sys
import time
from pathlib import Path

from efficientbench.basics.errors import LaunchError
from efficientbench.basics.foreign import open_at_once

SECRET_NAME = "EFFICIENTBENCH_SECRET"
SHORTEST = 16
"""Fewest characters of a secret: whoever hears a greeting can try all shorter ones."""
FILE_NAME = ".efficientbench_secret"
APPEARS_S = 30.0
"""Seconds that a file's content may take to reach a node through a network file system."""


def own_nonce() -> str:
    """Return a nonce (hex), which makes an answer fit this conversation alone."""
    return secrets.token_hex(16)


def code(secret: bytes, *parts: object) -> str:
    """Return the code (hex) of parts without spaces."""
    return hmac.new(secret, " ".join(map(str, parts)).encode(), hashlib.sha256).hexdigest()


class Seal:
    """One end of a conversation: it seals what this end sends, and opens what the other end has sealed."""

    def __init__(self, key: bytes, own: int, other: int) -> None:
        """`key`: the key of this conversation alone; `own`, `other`: the numbers of the nodes at its ends."""
        self._key, self._own, self._other = key, own, other
        self._sent = self._received = 0

    def sealed(self, content: bytes) -> bytes:
        """Return a line with its number, its code and a newline; `content` has no newline."""
        self._sent += 1
        return b"%d %s %b\n" % (self._sent, self._code(self._own, self._sent, content), content)

    def opened(self, line: bytes) -> bytes | None:
        """Return the content of a line; None unless the other end has sealed it, after all that were opened before."""
        number, _, rest = line.rstrip(b"\n").partition(b" ")
        found, _, content = rest.partition(b" ")
        if not (number.isdigit() and len(number) < 19 and int(number) > self._received):
            return None
        if not hmac.compare_digest(found, self._code(self._other, int(number), content)):
            return None
        self._received = int(number)
        return content

    def _code(self, sender: int, number: int, content: bytes) -> bytes:
        return hmac.new(self._key, b"%d %d %b" % (sender, number, content), hashlib.sha256).hexdigest().encode()


def shared_secret(folder: Path) -> bytes:
    """Return the secret in a folder that all nodes share; the first node to ask makes it.

    Raises:
        LaunchError: the file cannot be made or read, or holds no secret.
    """
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return _read(path)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        return _read(path)
    except OSError as error:
        raise LaunchError(f"{path} cannot be used: {error.strerror}; {_REMEDY}") from None


def _read(path: Path) -> bytes:
    """Return the content of a secret's file; wait while another node writes it."""
    deadline_s = time.monotonic() + APPEARS_S
    while True:
        with open(open_at_once(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise LaunchError(f"{path} is not a file of this user: remove it; {_REMEDY}")
            content = file.read(1024).strip()
        if len(content) >= SHORTEST:
            break
        if time.monotonic() > deadline_s:
            raise LaunchError(f"{path} holds no secret: remove it")
        time.sleep(0.1)
    if found.st_mode & 0o077:
        # Some network file systems give all files the same mode.
        print(f"warning: others can read {path}: {_REMEDY}", file=sys.stderr, flush=True)
    return content


_REMEDY = f"or set {SECRET_NAME} to the same text on all nodes"
