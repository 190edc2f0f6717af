"""One file from the hub to its place: resumed at its byte, checked, and only then named.

The bytes gather in `NAME.CHECKSUM.partial`. The checksum in that name is the one of the whole content, so bytes of
another version of the file are never continued.
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
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import get_session

from efficientbench.data_tools.download.listing import RemoteFile
from efficientbench.data_tools.download.requests import (
    Patience,
    StoppedError,
    TryAgainError,
    failures_told,
    headers_for,
    retry_after_s,
    timeout_s,
    wait_or_give_up,
)
from efficientbench.data_tools.errors import DataError, first_line

# A whole file whose checksum is wrong is fetched once more; then the server, or something before it, is broken.
_MAX_WRONG_CONTENTS = 2

logger = logging.getLogger(__name__)


@dataclass
class Transfer:
    """One file on its way.

    repository, commit, file: what is fetched.
    target: its path here; its folder exists.
    patience: how long failures are tried again.
    stop: set by whoever wants the transfer to leave off.
    on_position: hears the file's path and how many of its bytes lie here, whenever that changes.
    """

    repository: str
    commit: str
    file: RemoteFile
    target: Path
    patience: Patience
    stop: threading.Event
    on_position: Callable[[str, int], None]
    # The storage's own name of the content that the partial file was begun with, where it gives a strong one.
    _etag: str | None = field(default=None, init=False)

    @property
    def partial(self) -> Path:
        """Where the bytes gather."""
        return self.target.with_name(f"{self.target.name}.{self.file.checksum[:16]}.partial")

    def run(self) -> None:
        """Fetch what is missing, check the whole, and give it its name.

        Raises:
            DataError: the content or an answer is wrong for good, or the patience is at its end.
            StoppedError: `stop` was set. What has arrived stays, as after every error but wrong content.
            OSError: the disk refuses.
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
                # Only bytes that were never here before count as progress: else a server that always breaks at the
                # same place would be asked for ever.
                position = self.position()
                failures = 1 if position > furthest else failures + 1
                furthest = max(furthest, position)
                wait_or_give_up(self.file.path, error, failures, self.patience, self.stop)
        self._check_parquet()
        _flush(self.partial)
        os.replace(self.partial, self.target)

    def position(self) -> int:
        """How many bytes lie here."""
        with suppress(FileNotFoundError):
            return self.partial.stat().st_size
        return 0

    def adopt_cached(self) -> None:
        """Where the hub's own cache (`HF_HOME`) has the file, and on the same file system, let the partial be it."""
        cached = try_to_load_from_cache(self.repository, self.file.path, revision=self.commit, repo_type="dataset")
        if not isinstance(cached, str) or self.position() == self.file.size_bytes:
            return
        with suppress(OSError):
            blob = Path(cached).resolve(strict=True)
            # A shorter one would be continued, and that would change the cache's own file.
            if blob.stat().st_size == self.file.size_bytes:
                self.partial.unlink(missing_ok=True)
                os.link(blob, self.partial)

    def _drop_other_versions(self) -> None:
        name = glob.escape(self.target.name)
        for path in self.target.parent.glob(f"{name}.{'[0-9a-f]' * 16}.partial"):
            if path != self.partial:
                path.unlink()

    def _receive(self) -> None:
        """One attempt to complete the partial file."""
        if self.position() > self.file.size_bytes:
            self.partial.unlink()
        if self.position() == self.file.size_bytes and self.partial.exists():
            return
        with failures_told(self.repository, self.commit):
            location = self._location()
            headers = headers_for(location)
            position = self.position()
            if position:
                headers["Range"] = f"bytes={position}-"
                if self._etag:
                    headers["If-Range"] = self._etag  # else the whole file (RFC 9110, 13.1.5)
            request = get_session().stream("GET", location, headers=headers, timeout=timeout_s())
            with request as response, self.partial.open("ab", buffering=0) as stream:
                self._check_answer(response, stream)
                self._write_body(response, stream)

    def _location(self) -> str:
        """Where the content lies now; the hub signs such addresses for a limited time, so each attempt asks."""
        url = hf_hub_url(self.repository, self.file.path, repo_type="dataset", revision=self.commit)
        metadata = get_hf_file_metadata(url, timeout=timeout_s())
        is_checksum = re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", metadata.etag or "")
        if is_checksum and metadata.etag != self.file.checksum:
            raise DataError(f"{self.file.path} changed on the hub since it was listed: call again")
        if metadata.size is not None and metadata.size != self.file.size_bytes:
            raise TryAgainError(f"the server says {metadata.size:,} bytes, the hub's list {self.file.size_bytes:,}")
        return str(metadata.location)

    def _check_answer(self, response: Any, stream: BinaryIO) -> None:
        """Refuse an answer that cannot be continued with; go back to the first byte where it begins there."""
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
        elif position:  # it cannot continue, or will not since the content is another
            logger.info("%s: the server sends it from its first byte", self.file.path)
            stream.truncate(0)
        length = response.headers.get("Content-Length", "")
        if length.isdigit() and int(length) != expected:
            raise TryAgainError(f"the server offers {int(length):,} bytes instead of {expected:,}")
        self._etag = etag

    def _write_body(self, response: Any, stream: BinaryIO) -> None:
        position = stream.seek(0, os.SEEK_END)
        for chunk in response.iter_bytes():
            if self.stop.is_set():
                raise StoppedError
            if position + len(chunk) > self.file.size_bytes:
                stream.truncate(0)
                raise TryAgainError(f"the server sends more than the file's {self.file.size_bytes:,} bytes")
            left = memoryview(chunk)
            while left:  # a disk that is nearly full takes less than it is given
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
    """Whether the file here has the size and the checksum of the one on the hub."""
    if path.stat().st_size != file.size_bytes:
        return False
    if len(file.checksum) == 64:
        digest = hashlib.sha256()
    else:  # as git names its blobs
        digest = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == file.checksum


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
