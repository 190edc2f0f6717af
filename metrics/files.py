"""Writes files atomically: no reader sees a half-written file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.basics.files import complete_file


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` for writing, and rename it to `path` at the end; make missing folders.

    At any moment `path` is either the old file or the complete new one.

    Raises:
        MetricsError: the file cannot be written; the message has its name and the reason.
    """
    # The temporary name must not contain path's: TensorBoard reads every file that has "tfevents" in its name.
    partial = path.with_name(f".partial-{os.getpid()}-{threading.get_ident()}")
    with os_errors_as(MetricsError, f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with complete_file(path, partial) as file:
            yield file


def write_whole(path: Path, text: str) -> None:
    """Write a text in UTF-8 as `whole_file` does; surrogates, which stand for undecodable bytes, become escapes.

    Raises:
        MetricsError: the file cannot be written; the message has its name and the reason.
    """
    with whole_file(path) as file:
        # JSON reads the escape back as the surrogate.
        file.write(text.encode(errors="backslashreplace"))
