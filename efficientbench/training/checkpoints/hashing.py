"""Hash a checkpoint's files, and force them onto the disk. No torch here: the parent process imports this too."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from efficientbench.basics.foreign import open_regular

READ_BYTES = 1 << 20
Report = Callable[[str], object]
"""Told what is under way, at each file and each GiB of it: hashing a large model takes minutes."""


@dataclass(frozen=True)
class File:
    """One file of a checkpoint."""

    sha256: str
    bytes: int


def hashing_threads() -> ThreadPoolExecutor:
    """Return threads that hash files at the same time; hashing lets other threads run."""
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))


def fingerprint(path: Path, report: Report | None = None) -> File:
    """Return size and SHA-256 of a file; `report` is told of its progress.

    Raises:
        OSError: the file cannot be read.
    """
    digest, size_bytes, reported_gib = hashlib.sha256(), 0, -1
    with open_regular(path, buffering=0) as file:
        while block := file.read(READ_BYTES):
            if report is not None and size_bytes >> 30 > reported_gib:
                reported_gib = size_bytes >> 30
                report(f"hashing {path.name}, {reported_gib} GiB so far")
            digest.update(block)
            size_bytes += len(block)
    return File(digest.hexdigest(), size_bytes)


def flush(path: Path) -> None:
    """Force a file's content, or a folder's list of names, onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
