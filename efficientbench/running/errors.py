"""The errors that a user can mend; imports nothing heavy, so that the command line prints a mistake at once."""

from __future__ import annotations

import errno
import resource

from efficientbench.basics.errors import ConfigError, DataError, LaunchError, MetricsError, TrainingError
from efficientbench.devices.base import DeviceError

USERS_MISTAKES = (ConfigError, DataError, DeviceError, LaunchError, MetricsError, TrainingError)
"""Errors that the user can mend: their text is the whole message, and no traceback is printed."""


_OF_PATHS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
"""The system's error numbers for a path that this user cannot use, wherever it is opened."""


def unusable_path(error: BaseException) -> str | None:
    """Return the path that the system refused, with its reason, for people; None for other errors."""
    if isinstance(error, OSError) and error.errno in _OF_PATHS and isinstance(error.filename, str):
        return f"{error.filename}: {error.strerror}"
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the host had no memory left for Python itself, or for a library that it loads."""
    # numpy 2.2, Python 3.10's, says something else and names this as the cause.
    causes = error.__cause__ is not None and is_out_of_memory(error.__cause__)
    return isinstance(error, MemoryError) or "failed to map segment" in str(error) or causes


def address_limit() -> str | None:
    """Return the shell's limit on a process's addresses, for people; None without one."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return None
    return f"this shell allows a process {limit_bytes / 1e6:,.0f} MB of addresses: ulimit -v unlimited lifts that"
