"""Progress of a download, in files and bytes: a bar on a terminal, a line per finished file elsewhere."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

logger = logging.getLogger(__name__)


class DownloadProgress:
    """Counts and shows; its methods may be called from any thread.

    total_files, total_bytes: of the whole download, with what lay here before.
    """

    def __init__(self, total_files: int, total_bytes: int, finished_files: int, positions: dict[str, int]) -> None:
        """`positions`: by path, the bytes that lie here of each file, finished or not."""
        self._total_files = total_files
        self._total_bytes = total_bytes
        self._finished_files = finished_files
        self._positions = dict(positions)
        self._bytes = sum(positions.values())
        self._lock = threading.Lock()
        console = Console(stderr=True)
        self._is_terminal = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task(self._files(), total=total_bytes, completed=self._bytes)

    def __enter__(self) -> DownloadProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def position(self, path: str, position_bytes: int) -> None:
        """So many bytes of a file lie here now."""
        with self._lock:
            self._bytes += position_bytes - self._positions.get(path, 0)
            self._positions[path] = position_bytes
            self._bar.update(self._task, completed=self._bytes)

    def finished(self, path: str) -> None:
        """A file has its name."""
        with self._lock:
            self._finished_files += 1
            self._bar.update(self._task, description=self._files())
        if not self._is_terminal:
            logger.info("%s: %s, %.2f of %.2f GB", self._files(), path, self._bytes / 1e9, self._total_bytes / 1e9)

    def _files(self) -> str:
        return f"{self._finished_files:,} of {self._total_files:,} files"
