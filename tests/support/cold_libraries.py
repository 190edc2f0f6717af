"""Drop the installed libraries from the page cache: `python3 tests/support/cold_libraries.py`.

Files that were just written, as by a set-up, lie there in large pieces. Linux maps such pieces whole, so that a process
counts up to 130 MB more than with files that were read, and a smoke run needs 450 MB. Nobody may have them open.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

if __name__ == "__main__":
    os.sync()  # what is not on the disk yet stays in the cache
    for library in Path(sysconfig.get_path("platlib")).rglob("*.so*"):
        if library.is_file():
            descriptor = os.open(library, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
