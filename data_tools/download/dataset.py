"""A dataset from the hub into a folder: what is missing there, several files at once."""

from __future__ import annotations

import errno
import logging
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from efficientbench.data_tools.download.listing import (
    Listing,
    RemoteFile,
    default_config,
    default_revision,
    list_dataset,
)
from efficientbench.data_tools.download.progress import DownloadProgress
from efficientbench.data_tools.download.record import STATE_FOLDER, Record, load_record
from efficientbench.data_tools.download.requests import HubUnreachableError, Patience
from efficientbench.data_tools.download.transfer import Transfer
from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.files import exclusive_lock

DEFAULT_NUM_FILES = 200
DEFAULT_MAX_WORKERS = 3
# An interrupted download does not wait for a server that is silent: what has arrived lies on the disk.
_LAST_WORDS_S = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadRequest:
    """What to download, and whereto.

    repository: OWNER/NAME of a dataset on the hub.
    folder: its files get their repository paths below it.
    config: a configuration of the dataset; None for FineWeb-Edu's sample of 10 billion tokens, and all files of
        documents of any other dataset.
    revision: a branch, tag or commit; None for FineWeb-Edu's v1.2.0 and any other dataset's main branch.
    num_files: at most so many, the first by path.
    max_workers: files at once.
    """

    repository: str
    folder: Path
    config: str | None = None
    revision: str | None = None
    num_files: int = DEFAULT_NUM_FILES
    max_workers: int = DEFAULT_MAX_WORKERS


def download_dataset(request: DownloadRequest, patience: Patience | None = None) -> list[Path]:
    """The files of a dataset, in the order of their paths; what lies in the folder already is not fetched again.

    A file has its name only once its size, its checksum and, if it is parquet, its footer are right. What interrupts
    the download, whatever it is, leaves `.partial` files that the next call continues. Where the hub cannot be
    reached, a folder that is complete for this request serves as it is. Processes that call this at once with the
    same folder wait for each other.

    Raises:
        DataError: the request or the hub's answer cannot be used, the disk has not enough room, a transfer failed
            for good, or patience ended.
    """
    patience = patience or Patience()
    if request.num_files < 1 or request.max_workers < 1:
        raise DataError("the number of files, and of files at once, is at least 1")
    with _disk_errors_told(request.folder):
        (request.folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
        with exclusive_lock(request.folder / STATE_FOLDER / "lock"):
            record = load_record(request.folder, request.repository)
            listing = _listing(request, record, patience)
            _complete(listing, record, request.max_workers, patience)
    return [request.folder / file.path for file in listing.files]


def _listing(request: DownloadRequest, record: Record, patience: Patience) -> Listing:
    """What the hub lists for the request, noted in the record; the noted one where the hub cannot be asked."""
    revision = request.revision or default_revision(request.repository)
    config = request.config or default_config(request.repository)
    words = f"config={config} revision={revision} num_files={request.num_files}"
    try:
        listing = list_dataset(request.repository, config, revision, request.num_files, patience)
    except HubUnreachableError as error:
        noted = record.listings.get(words)
        if noted is None or not all(record.holds(file) for file in noted.files):
            raise
        logger.warning("%s; all that was listed last, at commit %s, lies in %s", error, noted.commit, record.folder)
        return noted
    record.listings[words] = listing
    record.save()
    return listing


def _complete(listing: Listing, record: Record, max_workers: int, patience: Patience) -> None:
    """Fetch what is missing of a listing."""
    missing = [file for file in listing.files if not record.holds(file)]
    total_bytes = sum(file.size_bytes for file in listing.files)
    logger.info(
        "%s at commit %s: %s files, %.2f GB, %s of them here",
        *(listing.repository, listing.commit[:12], f"{len(listing.files):,}", total_bytes / 1e9),
        f"{len(listing.files) - len(missing):,}",
    )
    if not missing:
        return
    positions = {file.path: file.size_bytes for file in listing.files if file not in missing}
    progress = DownloadProgress(len(listing.files), total_bytes, len(positions), positions)
    stop = threading.Event()
    transfers = []
    for file in missing:
        target = record.folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        transfer = Transfer(listing.repository, listing.commit, file, target, patience, stop, progress.position)
        transfer.adopt_cached()
        progress.position(file.path, transfer.position())
        transfers.append(transfer)
    _check_space(record.folder, sum(max(0, each.file.size_bytes - each.position()) for each in transfers))
    with progress:
        for file in _run(transfers, max_workers, stop):
            record.add(file)
            progress.finished(file.path)


def _run(transfers: list[Transfer], max_workers: int, stop: threading.Event) -> Iterator[RemoteFile]:
    """Yields each file as it is finished; raises what the first that fails raises, and ends the others."""
    waiting: queue.SimpleQueue[Transfer] = queue.SimpleQueue()
    results: queue.SimpleQueue[RemoteFile | BaseException] = queue.SimpleQueue()
    for transfer in transfers:
        waiting.put(transfer)

    def work() -> None:
        while not stop.is_set():
            try:
                transfer = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                transfer.run()
                results.put(transfer.file)
            except BaseException as error:  # whatever it is, the main thread must not wait for ever
                results.put(error)

    # Daemons: a pool's threads would keep an interrupted process until a silent server's time is over.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(max_workers, len(transfers)))]
    for thread in threads:
        thread.start()
    try:
        for _ in transfers:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        deadline_s = time.monotonic() + _LAST_WORDS_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise DataError(
            f"{folder} has {free_bytes / 1e9:,.3f} GB free, and {needed_bytes / 1e9:,.3f} GB are to be downloaded: "
            "free some, choose another folder, or fewer files (--num-files)"
        )


@contextmanager
def _disk_errors_told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"no space left in {folder}: free some and call again, it goes on where it was") from None
        raise DataError(f"{error.filename or folder}: {error.strerror or error}") from None
