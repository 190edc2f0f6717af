"""Downloads one file: resumes at the byte, verifies the content, and only then gives the file its name.

The bytes are written to `NAME.CHECKSUM.partial`. That checksum is of the complete file, so a download never resumes
from the bytes of another version.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import get_session

from efficientbench.basics.errors import DataError, first_line
from efficientbench.basics.files import file_blocks, no_link
from efficientbench.basics.foreign import open_regular
from efficientbench.data_tools.download.hub_requests import (
    Patience,
    StoppedError,
    TooSlowError,
    TryAgainError,
    headers_for,
    hub_errors_explained,
    not_too_slow,
    retry_after_s,
    wait_or_give_up,
)
from efficientbench.data_tools.download.listing import RemoteFile

_MAX_WRONG_CONTENTS = 2
"""Downloads with a wrong checksum after which the file fails: the server or a proxy is broken."""

logger = logging.getLogger(__name__)


@dataclass
class Transfer:
    """The download of one file."""

    repository: str
    commit: str
    file: RemoteFile
    target: Path
    """The path of the finished file; its folder exists."""
    patience: Patience
    stop: threading.Event
    """Set to stop the transfer."""
    on_position: Callable[[str, int], None]
    """Called with the file's path and the number of its bytes on the disk, whenever that changes."""
    _etag: str | None = field(default=None, init=False)
    """The storage's strong ETag of the partial file's content; None if it has not sent one."""

    @property
    def partial(self) -> Path:
        """The file that receives the bytes."""
        return self.target.with_name(f"{self.target.name}.{self.file.checksum[:16]}.partial")

    def run(self) -> None:
        """Download the missing bytes, verify the content, and give the file its name.

        After every error but wrong content, the partial file keeps the bytes received.

        Raises:
            DataError: the content or a response is wrong, or all attempts failed.
            StoppedError: `stop` was set.
            OSError: the file cannot be written.
        """
        self._drop_other_versions()
        failures = wrong_contents = furthest = 0
        while True:
            try:
                self._receive()
                if has_content(self.partial, self.file):
                    break
                self.partial.unlink()
                wrong_contents += 1
                raise TryAgainError("its content is not the one that the hub lists (checksum)")
            except TryAgainError as error:
                if wrong_contents == _MAX_WRONG_CONTENTS:
                    raise DataError(
                        f"{self.file.path}: {error}, {wrong_contents} times in a row; nothing of it was kept"
                    ) from None
                # Only bytes that were never received before count as progress: else the requests to a server that
                # always fails at the same byte would never end.
                position = self.position()
                failures = 1 if position > furthest and not isinstance(error, TooSlowError) else failures + 1
                furthest = max(furthest, position)
                wait_or_give_up(self.file.path, error, failures, self.patience, self.stop)
        self._check_parquet()
        with open_regular(self.partial) as stream:
            os.fsync(stream.fileno())
        os.replace(self.partial, self.target)

    def position(self) -> int:
        """Return the number of bytes in the partial file."""
        return self.partial.stat().st_size if self.partial.exists() else 0

    def adopt_cached(self) -> None:
        """Link the partial file to the hub's own cache (`HF_HOME`), if that has the file on the same file system."""
        cached = try_to_load_from_cache(self.repository, self.file.path, revision=self.commit, repo_type="dataset")
        if not isinstance(cached, str) or self.position() == self.file.size_bytes:
            return
        with suppress(OSError):
            blob = Path(cached).resolve(strict=True)
            # The transfer would resume a shorter blob, and so change the cache's own file.
            if blob.stat().st_size == self.file.size_bytes:
                self.partial.unlink(missing_ok=True)
                os.link(blob, self.partial)

    def _drop_other_versions(self) -> None:
        name = glob.escape(self.target.name)
        for path in self.target.parent.glob(f"{name}.{'[0-9a-f]' * 16}.partial"):
            if path != self.partial:
                path.unlink()

    def _receive(self) -> None:
        """Try once to complete the partial file."""
        if self.position() > self.file.size_bytes:
            self.partial.unlink()
        if self.position() == self.file.size_bytes and self.partial.exists():
            return
        with hub_errors_explained(self.repository, self.commit):
            location = self._location()
            headers = headers_for(location)
            position = self.position()
            if position:
                headers["Range"] = f"bytes={position}-"
                if self._etag:
                    headers["If-Range"] = self._etag  # changed content is sent from its first byte (RFC 9110, 13.1.5)
            timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
            request = get_session().stream("GET", location, headers=headers, timeout=timeout_s)
            with request as response, open(self.partial, "ab", 0, opener=no_link) as stream:
                self._check_answer(response, stream)
                self._write_body(response, stream)

    def _location(self) -> str:
        """Ask the hub for the content's address, at every attempt, since it signs addresses for a limited time."""
        url = hf_hub_url(self.repository, self.file.path, repo_type="dataset", revision=self.commit)
        metadata = get_hf_file_metadata(url, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
        is_checksum = re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", metadata.etag or "")
        if is_checksum and metadata.etag != self.file.checksum:
            raise DataError(f"{self.file.path} changed on the hub since it was listed: call again")
        if metadata.size is not None and metadata.size != self.file.size_bytes:
            raise TryAgainError(f"the server says {metadata.size:,} bytes, the hub's list {self.file.size_bytes:,}")
        return str(metadata.location)

    def _check_answer(self, response: Any, stream: BinaryIO) -> None:
        """Raise `TryAgainError` for a response that cannot complete the file; empty the file if it is sent anew."""
        size_bytes, status = self.file.size_bytes, response.status_code
        if status == 416:
            stream.truncate(0)
            raise TryAgainError("the server does not have the bytes that are missing")
        if status not in (200, 206):
            raise TryAgainError(f"the server answers {status}", retry_after_s(response.headers))
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise TryAgainError("the server packs the content, though it was asked not to")
        position = stream.seek(0, os.SEEK_END)
        etag = response.headers.get("ETag")
        etag = None if etag is None or etag.startswith("W/") else etag
        expected = size_bytes
        if status == 206:
            if self._etag and etag != self._etag:
                stream.truncate(0)
                raise TryAgainError("the file changed where it is stored: beginning again")
            if response.headers.get("Content-Range") != f"bytes {position}-{size_bytes - 1}/{size_bytes}":
                raise TryAgainError("the server sends another range than asked for")
            expected -= position
        elif position:  # the server cannot resume, or does not, since the content changed
            logger.info("%s: the server sends it from its first byte", self.file.path)
            stream.truncate(0)
        length = response.headers.get("Content-Length", "")
        if length.isdigit() and int(length) != expected:
            raise TryAgainError(f"the server offers {int(length):,} bytes instead of {expected:,}")
        self._etag = etag

    def _write_body(self, response: Any, stream: BinaryIO) -> None:
        position = stream.seek(0, os.SEEK_END)
        for chunk in not_too_slow(response.iter_bytes()):
            if self.stop.is_set():
                raise StoppedError
            if position + len(chunk) > self.file.size_bytes:
                stream.truncate(0)
                raise TryAgainError(f"the server sends more than the file's {self.file.size_bytes:,} bytes")
            left = memoryview(chunk)
            while left:  # a nearly full disk accepts only some of the bytes
                left = left[stream.write(left) :]
            position += len(chunk)
            self.on_position(self.file.path, position)
        if position < self.file.size_bytes:
            raise TryAgainError(f"the server ended at byte {position:,} of {self.file.size_bytes:,}")

    def _check_parquet(self) -> None:
        if not self.target.name.endswith(".parquet"):
            return
        try:
            pyarrow.parquet.read_metadata(self.partial)
        except (pyarrow.ArrowException, OSError) as error:
            self.partial.unlink()
            raise DataError(
                f"{self.file.path} is no parquet file, though it is what the hub has: {first_line(error)}"
            ) from None


def has_content(path: Path, file: RemoteFile) -> bool:
    """Return whether a local file has the size and the checksum that the hub lists."""
    if path.stat().st_size != file.size_bytes:
        return False
    if len(file.checksum) == 64:
        digest = hashlib.sha256()
    else:  # as git names its blobs
        digest = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    for block in file_blocks(path):
        digest.update(block)
    return digest.hexdigest() == file.checksum
