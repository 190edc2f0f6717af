"""Writes files that are never seen half written."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from efficientbench.basics.errors import MetricsError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` for writing, and rename it to `path` at the end; folders are made as needed.

    Whatever happens meanwhile, `path` is the old file or the new one, whole.

    Raises:
        MetricsError: the file cannot be written; the message has its name and the reason.
    """
    # The name must not have path's in it: TensorBoard reads every file that has "tfevents" in its name.
    beside = path.with_name(f".partial-{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What a killed process has left, or a link that leads elsewhere.
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:
            yield file
            # Before the rename: else a power cut may leave the new name with the content not yet on the disk.
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise MetricsError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        with suppress(OSError):
            beside.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write a text as `whole_file` does, in UTF-8; what Python puts for other bytes of a path becomes an escape.

    Raises:
        MetricsError: the file cannot be written; the message has its name and the reason.
    """
    with whole_file(path) as file:
        # In JSON, the escape is read as what it was.
        file.write(text.encode(errors="backslashreplace"))
