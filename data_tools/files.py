"""Checksums, locks, and files that appear only when they are complete."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)


def checksum(*paths: Path) -> str:
    """SHA-256 (hex) of the files' contents, in the order given; their names do not count."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, flush it to the disk, and give it its name."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; wait while another process holds it. The system frees it when its holder dies."""
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for the process that holds %s", path)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
