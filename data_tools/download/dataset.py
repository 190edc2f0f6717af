"""Downloads the files of a dataset that a folder lacks, several at once."""

from __future__ import annotations

import collections
import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import disk_errors_explained, exclusive_lock
from efficientbench.data_tools.download.download_record import STATE_FOLDER, Record, load_record
from efficientbench.data_tools.download.hub_names import is_of_modelscope
from efficientbench.data_tools.download.hub_requests import HubUnreachableError, Patience
from efficientbench.data_tools.download.listing import (
    Listing,
    RemoteFile,
    default_config,
    default_revision,
    list_dataset,
)
from efficientbench.data_tools.download.modelscope import REVISION, ModelScopeTransfer, list_modelscope
from efficientbench.data_tools.download.transfer import Transfer

_STOP_WAIT_S = 1.0
"""Longest wait for transfers to stop. A silent server may block them; the bytes received are on the disk."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadRequest:
    """What to download, and into which folder."""

    repository: str
    """OWNER/NAME of a dataset on the hub, or modelscope:OWNER/NAME."""
    folder: Path
    """The folder below which files get their paths in the repository."""
    config: str | None = None
    """A configuration of the dataset; None for FineWeb-Edu's sample of 10 billion tokens, and for all document files
    of any other dataset."""
    revision: str | None = None
    """A branch, tag or commit; None for FineWeb-Edu's v1.2.0, any other dataset's `main`, and `master` on
    ModelScope."""
    num_files: int = 200
    """The largest number of files, the first by path."""
    max_workers: int = 3
    """The number of files downloaded at once."""
    split: str | None = None
    """One split of the configuration (of `default` if none is named); None for all splits."""


def download_dataset(
    request: DownloadRequest, patience: Patience | None = None, on_progress: Callable[[], object] | None = None
) -> list[Path]:
    """Download the files of a dataset that the folder lacks, and return the paths of all its files, sorted.

    A file gets its name only after its size, its checksum and, for parquet, its footer were verified. An interrupted
    download leaves `.partial` files, which the next call resumes. If the hub is unreachable, a folder that is complete
    for this request is used as it is. Processes that call this at once with the same folder wait for each other.

    Args:
        request: the request.
        patience: the limits of waiting for the hub.
        on_progress: called whenever more of a file is on the disk, by any thread.

    Raises:
        DataError: the request or the hub's response is not valid, the disk has too little space, or a transfer failed.
    """
    patience = patience or Patience()
    if request.num_files < 1 or request.max_workers < 1:
        raise DataError("the number of files, and of files at once, is at least 1")
    with disk_errors_explained(request.folder):
        (request.folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
        with exclusive_lock(request.folder / STATE_FOLDER / "lock"):
            record = load_record(request.folder, request.repository)
            listing = _listing(request, record, patience)
            complete(listing, record, request.max_workers, patience, on_progress=on_progress)
    return [request.folder / file.path for file in listing.files]


def _listing(request: DownloadRequest, record: Record, patience: Patience) -> Listing:
    """List the request's files on the hub and record them; use the recorded list if the hub is unreachable."""
    elsewhere = is_of_modelscope(request.repository)
    revision = request.revision or (REVISION if elsewhere else default_revision(request.repository))
    config = request.config or default_config(request.repository)
    key = f"config={config} revision={revision} num_files={request.num_files}"
    if request.split is not None:
        key += f" split={request.split}"
    try:
        list_files = list_modelscope if elsewhere else list_dataset
        listing = list_files(request.repository, config, revision, request.num_files, patience, request.split)
    except HubUnreachableError as error:
        recorded = record.listings.get(key)
        if recorded is None or not all(record.holds(file) for file in recorded.files):
            raise
        logger.warning(
            "%s; %s has all files that were listed last, at commit %s", error, record.folder, recorded.commit
        )
        return recorded
    record.listings[key] = listing
    record.save()
    return listing


def complete(
    listing: Listing,
    record: Record,
    max_workers: int,
    patience: Patience,
    kind: str = "datasets",
    on_progress: Callable[[], object] | None = None,
) -> None:
    """Download the files of a listing that the folder lacks; `kind` is ModelScope's: `datasets` or `models`.

    Raises:
        DataError: the disk has too little space, or a transfer failed.
    """
    missing = [file for file in listing.files if not record.holds(file)]
    total_bytes = sum(file.size_bytes for file in listing.files)
    logger.info(
        "%s at commit %s: %s files, %.2f GB, %s of them here",
        *(listing.repository, listing.commit[:12], f"{len(listing.files):,}", total_bytes / 1e9),
        f"{len(listing.files) - len(missing):,}",
    )
    if not missing:
        return
    finished = {file.path: file.size_bytes for file in listing.files if file not in missing}
    progress = _Progress(len(listing.files), total_bytes, finished, on_progress)
    stop = threading.Event()
    transfers: list[Transfer] = []
    for file in missing:
        target = record.folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        job = (listing.repository, listing.commit, file, target, patience, stop, progress.position)
        transfer = ModelScopeTransfer(*job, kind) if is_of_modelscope(listing.repository) else Transfer(*job)
        transfer.adopt_cached()
        progress.position(file.path, transfer.position())
        transfers.append(transfer)
    _check_space(record.folder, sum(max(0, each.file.size_bytes - each.position()) for each in transfers))
    with progress.bar:
        for file in _run(transfers, max_workers, stop):
            record.add(file)
            progress.finished(file.path)


def _run(transfers: list[Transfer], max_workers: int, stop: threading.Event) -> Iterator[RemoteFile]:
    """Yield a file as soon as it is finished; at the first failure, stop the other transfers and raise its error."""
    waiting = collections.deque(transfers)
    results: queue.SimpleQueue[RemoteFile | BaseException] = queue.SimpleQueue()

    def work() -> None:
        with suppress(IndexError):  # nothing is waiting any more
            while not stop.is_set():
                transfer = waiting.popleft()
                try:
                    transfer.run()
                    results.put(transfer.file)
                except BaseException as error:  # without it, the main thread would hang
                    results.put(error)

    # Daemon threads: those of a pool would keep an interrupted process alive until a silent server's timeout.
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
        deadline_s = time.monotonic() + _STOP_WAIT_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise DataError(
            f"{folder} has {free_bytes / 1e9:,.3f} GB free, and {needed_bytes / 1e9:,.3f} GB are to be downloaded: "
            "free some, choose another folder, or fewer files (--num-files)"
        )


class _Progress:
    """Shows a bar on a terminal, else a line per finished file."""

    def __init__(
        self, total_files: int, total_bytes: int, finished: dict[str, int], on_progress: Callable[[], object] | None
    ) -> None:
        """Count the `finished` files (size in bytes, by path) in the totals; tell `on_progress` of each position."""
        self._on_progress = on_progress
        self._total_files, self._total_bytes = total_files, total_bytes
        self._finished_files = len(finished)
        self._positions = dict(finished)
        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.bar.add_task(self._files(), total=total_bytes, completed=sum(finished.values()))

    def position(self, path: str, position_bytes: int) -> None:
        """Show how many bytes of a file are on the disk; any thread may call this for a file shown before."""
        self._positions[path] = position_bytes
        if self._on_progress is not None:
            self._on_progress()
        self.bar.update(TaskID(0), completed=sum(self._positions.values()))

    def finished(self, path: str) -> None:
        """Count a file as finished."""
        self._finished_files += 1
        self.bar.update(TaskID(0), description=self._files())
        if self.bar.disable:
            task = self.bar.tasks[0]
            logger.info(
                "%s: %s, %.2f of %.2f GB", task.description, path, task.completed / 1e9, self._total_bytes / 1e9
            )

    def _files(self) -> str:
        return f"{self._finished_files:,} of {self._total_files:,} files"
