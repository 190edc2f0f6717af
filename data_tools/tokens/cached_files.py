"""Cached files, with a SHA-256 beside each of them, so that a damaged file is never used, but made again.

The checksum is in `NAME.sha256`, as `sha256sum` writes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from efficientbench.basics.files import beside, complete_file, disk_errors_explained, sha256, write_file

logger = logging.getLogger(__name__)


@contextmanager
def cached_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing as `complete_file` does, and write its checksum beside it.

    Raises:
        DataError: the disk is full, or the file cannot be written.
    """
    with disk_errors_explained(path.parent):
        with complete_file(path) as stream:
            yield stream
        write_file(_checksum_path(path), f"{sha256(path)}  {path.name}\n".encode())


def is_intact(path: Path) -> bool:
    """Return whether a cached file is intact; log a warning if it exists and is not."""
    if not os.path.lexists(path):
        return False
    if problem := _damage(path):
        logger.warning("%s %s: it is not used", path, problem)
    return problem is None


def _damage(path: Path) -> str | None:
    """Return what is wrong with a file; None if it is intact."""
    recorded = _checksum_path(path)
    # Neither file may be a device or a pipe, which never end.
    if not path.is_file() or (os.path.lexists(recorded) and not recorded.is_file()):
        return "is no regular file, or its checksum is none"
    try:
        with recorded.open("rb") as stream:
            expected = stream.read(64)
    except FileNotFoundError:
        return f"has no checksum {recorded.name} beside it"
    return None if sha256(path).encode() == expected else f"does not have the checksum in {recorded.name}"


def _checksum_path(path: Path) -> Path:
    return beside(path, "sha256")
