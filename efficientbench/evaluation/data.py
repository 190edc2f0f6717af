"""Find the data of tasks: a folder, or an archive by its address and checksum, which is fetched once."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path
from urllib.parse import urldefrag

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.basics.files import beside, complete_folder, disk_errors_explained, exclusive_lock, no_link, sha256
from efficientbench.running.trained import TrainedRun

BLOCK_BYTES = 1 << 20
TIMEOUT_S = 60
"""Seconds to wait for a byte from the server."""
MOST_BYTES = 20 * 10**9
"""The most bytes of an archive's content: many times the size of the tasks' items."""


def find_data(given: str | None, run_folder: Path) -> Path | None:
    """Return the folder that `--data` names, or the content of the archive at its address, in the run's `data.cache`.

    Raises:
        ConfigError: the address has no checksum, or `run_folder` is not a run's.
        DataError: the archive cannot be fetched or unpacked, has another checksum, or holds more than `MOST_BYTES`.
    """
    if given is None or "://" not in given:
        return None if given is None else Path(given)
    try:
        address, fragment = urldefrag(given)
    except ValueError as error:
        raise ConfigError(f"--data: {given:.200}: {error}") from None
    checksum = re.fullmatch("sha256=([0-9a-f]{64})", fragment.lower())
    if checksum is None:
        raise ConfigError(f"--data: {address}: add its checksum, {address}#sha256=…: 64 hexadecimal digits")
    cache = Path(TrainedRun.read(run_folder).job.config.data.cache).absolute() / "evaluation"
    with disk_errors_explained(cache):
        return fetch_archive(address, checksum[1], cache)


def fetch_archive(address: str, checksum: str, cache: Path, most_bytes: int = MOST_BYTES) -> Path:
    """Return the folder of a zip archive's content; fetch and unpack the archive unless that was done before.

    Args:
        address: the archive's URL.
        checksum: the archive's SHA-256 (hex).
        cache: the folder below which the content is stored.
        most_bytes: the most bytes of the content.

    Raises:
        DataError: the archive cannot be fetched or unpacked, has another checksum, or holds more than `most_bytes`.
        OSError: the cache cannot be read or written.
    """
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / checksum
    with exclusive_lock(cache / f"{checksum}.lock"):
        if not folder.is_dir():
            archive = cache / f"{checksum}.zip"
            _fetch(address, archive)
            found = sha256(archive)
            try:
                if found != checksum:
                    raise DataError(f"{address}: its SHA-256 is {found}, not {checksum}: nothing was kept")
                with complete_folder(folder) as partial:
                    _unpack(address, archive, partial, most_bytes)
            finally:
                archive.unlink()
    inside = [path for path in folder.iterdir() if not path.name.startswith(("__MACOSX", "."))]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _fetch(address: str, path: Path) -> None:
    """Fetch a file, and resume from the partial file that an interrupted call has left beside it."""
    partial = beside(path, "partial")
    there = partial.stat().st_size if partial.exists() else 0
    try:
        request = urllib.request.Request(address, headers={"Range": f"bytes={there}-"} if there else {})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            goes_on = there > 0 and answer.status == http.HTTPStatus.PARTIAL_CONTENT
            with open(partial, "ab" if goes_on else "wb", opener=no_link) as file:
                shutil.copyfileobj(answer, file, BLOCK_BYTES)
        # The answer of a `file:` address has no `length`.
        if left := getattr(answer, "length", None):
            raise ConnectionError(f"it ended {left:,} bytes before its end")
    except urllib.error.HTTPError as error:
        # The server refuses a range that begins at the end: the partial file is complete.
        if not there or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise DataError(f"{address}: download failed: {error}") from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{address}: download failed: {reason}; run the same command again to resume") from None
    os.replace(partial, path)


def _unpack(address: str, archive: Path, folder: Path, most_bytes: int) -> None:
    """Unpack an archive. `zipfile` writes nothing outside the folder, no links, and no more than the sizes it lists."""
    try:
        with zipfile.ZipFile(archive) as content:
            size_bytes = sum(each.file_size for each in content.infolist())
            if size_bytes > most_bytes:
                raise DataError(f"{address}: it holds {size_bytes:,} bytes, and at most {most_bytes:,} are unpacked")
            content.extractall(folder)
    except zipfile.BadZipFile:
        raise DataError(f"{address}: it is no zip archive") from None
    except (RuntimeError, zlib.error, EOFError) as error:  # a password, or a compression method that zipfile lacks
        raise DataError(f"{address}: it cannot be unpacked: {error}") from None
