"""Write files atomically and through no link; make temporary folders, and remove those of killed processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from efficientbench.basics.files import no_link

TEMPORARY = "efficientbench_"
YOUNG_S = 60.0
"""Seconds; a younger temporary folder may not be locked yet."""
FROM_CLONE = (Path(__file__).resolve().parents[1] / "setup.py").exists()
"""Whether this code lies in a clone of the repository, which a wheel's installation does not."""


def write_whole(path: Path, content: bytes, executable: bool = False) -> None:
    """Write a file beside `path` and rename it, so that a reader gets the old file or the new one.

    Raises:
        OSError: the file cannot be written; nothing is left beside it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb", opener=no_link) as file:
            file.write(content)
        if executable:
            beside.chmod(0o755)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def writable_caches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that moves Triton's cache out of a home that cannot be written; {} where it can be written.

    torch's own cache lies in the temporary folder anyway.
    """
    if {"TRITON_CACHE_DIR", "TRITON_HOME"} & environment.keys():
        return {}
    folder = Path(os.path.expanduser("~/.triton/cache"))
    # Not Path.exists, which raises where a folder above cannot be read.
    existing = next((each for each in (folder, *folder.parents) if os.path.exists(each)), folder)
    if folder.is_absolute() and os.access(existing, os.W_OK | os.X_OK):
        return {}
    # No temporary folder can be written where the disk is full.
    with contextlib.suppress(OSError):
        other = Path(tempfile.gettempdir()) / f"triton_uid_{os.getuid()}"
        other.mkdir(mode=0o700, exist_ok=True)
        # The cache holds code that is run: it must not be in a folder that another user has made.
        if other.lstat().st_uid == os.getuid():
            return {"TRITON_CACHE_DIR": str(other)}
    return {}


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder, and remove it at the end; remove those that this user's killed processes have left."""
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            _remove_abandoned(left)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as name, open(Path(name) / "lock", "wb") as lock:
        # The system frees the lock when its process dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _remove_abandoned(folder: Path) -> None:
    """Remove a temporary folder of this user that no process has locked. Raises OSError: a process has locked it."""
    found = folder.lstat()
    if found.st_uid != os.getuid() or time.time() - found.st_mtime < YOUNG_S:
        return
    with open(folder / "lock", "ab", opener=no_link) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
