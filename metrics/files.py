"""Writes files atomically: no reader sees a half-written file."""

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
    """Open a temporary file beside `path` for writing, and rename it to `path` at the end; make missing folders.

    At any moment `path` is either the old file or the complete new one.

    Raises:
        MetricsError: the file cannot be written; the message has its name and the reason.
    """
    # The temporary name must not contain path's: TensorBoard reads every file that has "tfevents" in its name.
    beside = path.with_name(f".partial-{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Remove what a killed process left there, or a link to another file.
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:
            yield file
            # Sync before the rename: a power cut could leave the new name without its content on the disk.
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise MetricsError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        with suppress(OSError):
            beside.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write a text in UTF-8 as `whole_file` does; surrogates, which stand for undecodable bytes, become escapes.

    Raises:
        MetricsError: the file cannot be written; the message has its name and the reason.
    """
    with whole_file(path) as file:
        # JSON reads the escape back as the surrogate.
        file.write(text.encode(errors="backslashreplace"))
