"""Checksums, locks, and files that appear only when they are complete."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

BLOCK_BYTES = 1 << 20  # that checksums are made of

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
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)  # what a full disk has left of it


def remove_partial(folder: Path) -> None:
    """Remove what a process that was stopped had begun to write."""
    for path in folder.glob("*.partial"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class FileChecksums:
    """A file's size, its SHA-256 (hex), and the CRC-32 (hex) of every `BLOCK_BYTES`, which tell where it is damaged."""

    size_bytes: int
    sha256: str
    crc32_per_mib: list[str]


def sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's content, as `sha256sum` gives it."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def file_checksums(path: Path) -> FileChecksums:
    """The checksums of a file's content."""
    with path.open("rb") as stream:
        return _checksums(iter(lambda: stream.read(BLOCK_BYTES), b""))


def write_blocks(path: Path, blocks: Iterable[bytes]) -> FileChecksums:
    """Write blocks of any size to `path`, flush them to the disk, and give the checksums of what was written."""
    with path.open("wb") as stream:
        written = _checksums(_tee(blocks, stream))
        stream.flush()
        os.fsync(stream.fileno())
    return written


def _tee(blocks: Iterable[bytes], stream: IO[bytes]) -> Iterator[bytes]:
    """Write blocks, and yield the same bytes in pieces of `BLOCK_BYTES`, but for the last."""
    rest = b""
    for block in blocks:
        stream.write(block)
        rest += block
        while len(rest) >= BLOCK_BYTES:
            yield rest[:BLOCK_BYTES]
            rest = rest[BLOCK_BYTES:]
    if rest:
        yield rest


def _checksums(blocks: Iterator[bytes]) -> FileChecksums:
    digest = hashlib.sha256()
    size = 0
    crcs = []
    for block in blocks:
        digest.update(block)
        crcs.append(f"{zlib.crc32(block):08x}")
        size += len(block)
    return FileChecksums(size, digest.hexdigest(), crcs)


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


def remembered_sha256(paths: Sequence[Path], folder: Path) -> list[str]:
    """SHA-256 (hex) of each file's content, in the order of `paths`; one that kept size and time is not read again.

    What was read lies in `folder/checksums.json`; processes that ask at once wait for each other.

    Raises:
        OSError: a file cannot be read, or the folder not be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    memory = folder / "checksums.json"
    with exclusive_lock(folder / "checksums.lock"):
        try:
            known = dict(json.loads(memory.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            known = {}  # nothing is lost by reading the files again
        found = {}
        digests = []
        for path in paths:
            stat = path.stat()
            state = f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns}"
            found[state] = known.get(state) or sha256(path)
            digests.append(found[state])
        if not found.keys() <= known.keys():
            write_file(memory, json.dumps({**known, **found}, indent=0).encode())
    return digests
