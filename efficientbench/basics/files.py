"""Opens files for writing, through no link and into no pipe."""

from __future__ import annotations

import errno
import os
import stat


def no_link(path: str, flags: int) -> int:
    """Open a file as `open(…, opener=no_link)` does, unless its name is a link to another file.

    Raises OSError: it is a link, or a pipe, which would wait for somebody who reads.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe", path)
    return descriptor
