"""Files that a reader never finds half written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes, executable: bool = False) -> None:
    """Write a file beside its place and rename it, so that the file is the old one or the new one.

    Raises:
        OSError: the file cannot be written; nothing is left beside it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        if executable:
            beside.chmod(0o755)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
