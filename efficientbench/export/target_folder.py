"""Fills a new folder only when all files are written, `config.json` last: a folder that has it is complete."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from efficientbench.basics.errors import ConfigError

PARTIAL = ".partial"
"""The folder inside the target that holds the files until all are written."""


def refuse_taken(folder: Path) -> None:
    """Refuse a path that is a file, or a folder that is not empty.

    Raises:
        ConfigError: the path is taken.
    """
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir())
        if PARTIAL in names:
            raise ConfigError(
                f"{folder}: another command writes here, or was killed while it did; then remove {folder / PARTIAL}"
            )
        if names:
            raise ConfigError(f"{folder} is not empty (it holds {names[0]}); give a new or empty folder")
    elif folder.exists():
        raise ConfigError(f"{folder} is a file; give a new or empty folder")


@contextlib.contextmanager
def claimed(folder: Path, needed_bytes: int) -> Iterator[Path]:
    """Make the folder and yield one inside it, whose files move up if the block ends without an error.

    Args:
        folder: the target folder, new or empty.
        needed_bytes: the size of the weights.

    Raises:
        ConfigError: the disk has too little space.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"no space left in {existing}: the weights take {needed_bytes / 1e6:,.1f} MB, {free_bytes / 1e6:,.1f} MB "
            "are free"
        )
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / PARTIAL
    partial.mkdir()
    try:
        yield partial
        for path in sorted(partial.iterdir(), key=lambda path: path.name == "config.json"):
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only an empty folder can be removed
