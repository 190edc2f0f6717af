"""Files that no reader finds half written and that follow no link, and folders that no killed process leaves behind."""

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
"""A temporary folder that is younger may not be locked yet."""


def write_whole(path: Path, content: bytes, executable: bool = False) -> None:
    """Write a file beside its place and rename it, so that the file is the old one or the new one.

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
    """Return the variable that gives Triton's cache another place where the home cannot be written; {} where it can.

    torch's own lies in the temporary folder at any rate.
    """
    if {"TRITON_CACHE_DIR", "TRITON_HOME"} & environment.keys():
        return {}
    folder = Path(os.path.expanduser("~/.triton/cache"))
    # Not Path.exists, which raises where a folder above cannot be read.
    existing = next((each for each in (folder, *folder.parents) if os.path.exists(each)), folder)
    if folder.is_absolute() and os.access(existing, os.W_OK | os.X_OK):
        return {}
    other = Path(tempfile.gettempdir()) / f"triton_uid_{os.getuid()}"
    with contextlib.suppress(OSError):
        other.mkdir(mode=0o700, exist_ok=True)
        # The cache is code that is run: not from a folder that another user has made.
        if other.lstat().st_uid == os.getuid():
            return {"TRITON_CACHE_DIR": str(other)}
    return {}


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder and remove it at the end, together with those that killed processes of this user have left."""
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            _remove_abandoned(left)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as name, open(Path(name) / "lock", "wb") as lock:
        # The system frees the lock when its process dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _remove_abandoned(folder: Path) -> None:
    """Remove a temporary folder that nobody holds. Raises OSError: somebody holds it, or it is another user's."""
    found = folder.lstat()
    if found.st_uid != os.getuid() or time.time() - found.st_mtime < YOUNG_S:
        return
    with open(folder / "lock", "ab", opener=no_link) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
