"""Files that are never half written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from efficientbench.metrics.errors import MetricsError


def write_whole(path: Path, text: str) -> None:
    """Write the text beside its place and rename it, making folders as needed: the file is the old one or the new.

    Raises:
        MetricsError: it cannot be written; the message names the file and says why.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise MetricsError(f"{path}: cannot be written ({error.strerror})") from None
