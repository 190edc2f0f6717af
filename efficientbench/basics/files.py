"""Writes complete files and folders or none, locks them, computes checksums, and reads the kernel's files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from efficientbench.basics.errors import DataError
from efficientbench.basics.foreign import open_at_once, open_regular, parse_json, read_whole

BLOCK_BYTES = 1 << 20
"""Size of the blocks in which files are read, with one CRC-32 for every block."""

logger = logging.getLogger(__name__)


def beside(path: Path, suffix: str) -> Path:
    """Return the path `PATH.SUFFIX` of a file that lies beside `path`."""
    return path.with_name(f"{path.name}.{suffix}")


def text_at(path: Path) -> str:
    """Return the text of one of the kernel's files without white space around it; '' where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


@contextmanager
def complete_file(path: Path, partial: Path | None = None) -> Iterator[IO[bytes]]:
    """Open `partial` for writing; flush it to the disk and rename it to `path` at the end.

    An error removes the partial file and leaves `path` as it was. `partial` lies beside `path`; None: PATH.partial.
    """
    partial = partial or beside(path, "partial")
    # A killed process may have left it, or it is a link that leads elsewhere.
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Make an empty partial folder beside `folder`; replace `folder` by it at the end, or remove it after an error."""
    partial = beside(folder, "partial")
    shutil.rmtree(partial, ignore_errors=True)  # a process that was killed may have left one
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`, which appears or changes only when all of it is on the disk."""
    with complete_file(path) as stream:
        stream.write(content)


def remove_partial(folder: Path) -> None:
    """Remove the partial files and folders that a killed process left in `folder`."""
    for path in folder.glob("*.partial"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def disk_errors_explained(
    folder: Path, again: str = "what is finished is kept, and the same command continues from there"
) -> Iterator[None]:
    """Raise a DataError for an OSError of the body; for a full disk the message has the free space of `folder`.

    `again` tells the user what the same command does once there is space.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(f"{error.filename or folder}: {error.strerror or error}") from None
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free_mb = shutil.disk_usage(existing).free / 1e6
        problem = "no space left" if error.errno == errno.ENOSPC else error.strerror
        raise DataError(
            f"{problem} in {folder} ({free_mb:,.1f} MB are free): free some, or choose another folder; {again}"
        ) from None


@dataclass(frozen=True)
class FileChecksums:
    """Checksums of a file's content."""

    size_bytes: int
    sha256: str
    """SHA-256 (hex) of the content."""
    crc32_per_mib: str
    """CRC-32 of every block of `BLOCK_BYTES`, 8 hexadecimal digits each, concatenated."""


def sha256(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's content, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    for block in file_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def sha256_of_each(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the SHA-256 (hex) of each file; several are read at once."""
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(paths, pool.map(sha256, paths), strict=True))


def file_blocks(path: Path) -> Iterator[bytes]:
    """Yield a file's content in blocks of `BLOCK_BYTES`; the last may be shorter."""
    with open_regular(path) as stream:
        while block := stream.read(BLOCK_BYTES):
            yield block


def file_checksums(path: Path) -> FileChecksums:
    """Return the checksums of a file's content."""
    digest = hashlib.sha256()
    crcs = []
    for block in file_blocks(path):
        digest.update(block)
        crcs.append(f"{zlib.crc32(block):08x}")
    return FileChecksums(path.stat().st_size, digest.hexdigest(), "".join(crcs))


def file_identity(path: Path) -> str:
    """Return a text that changes whenever a file is written or replaced: path, size, times and inode."""
    stat = path.stat()
    # The inode's change time too: a writer can set the modification time back.
    return f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; wait while another process holds it. The system frees it when its holder dies."""
    with open(path, "ab", opener=no_link) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for the process that holds %s", path)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def remembered_sha256(paths: Sequence[Path], folder: Path) -> list[str]:
    """Return each file's SHA-256 (hex), in the order of `paths`; read only files whose `file_identity` changed.

    `folder/checksums.json` stores the checksums. Processes that call this at once wait for each other.

    Raises:
        DataError: a file cannot be read, or the folder cannot be written.
    """
    memory = folder / "checksums.json"
    with disk_errors_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / "checksums.lock"):
            try:
                content = parse_json(read_whole(memory))
                known = {state: found for state, found in dict(content).items() if isinstance(found, str)}
            except (OSError, ValueError, TypeError):
                known = {}  # nothing is lost by reading the files again
            states = [file_identity(path) for path in paths]
            found = {state: known.get(state) or sha256(path) for path, state in zip(paths, states, strict=True)}
            if not found.keys() <= known.keys():
                write_file(memory, json.dumps({**known, **found}, indent=0).encode())
    return [found[state] for state in states]


def no_link(path: str, flags: int) -> int:
    """Open a file as `open(…, opener=no_link)` does, unless its name is a link to another file.

    Raises OSError: the file is a link, or a pipe, which would wait for a reader.
    """
    descriptor = open_at_once(path, flags | os.O_NOFOLLOW)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe", path)
    return descriptor
