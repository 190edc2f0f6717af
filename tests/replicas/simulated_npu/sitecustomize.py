"""The driver's device file, which a machine without an Ascend driver lacks, as `glob` finds it.

Python imports this module at start where its folder is on PYTHONPATH.
"""

from __future__ import annotations

import glob

DEVICE_FILE = "/dev/davinci0"

_glob = glob.glob


def _with_device_file(pathname: str, **options: object) -> list[str]:
    return [DEVICE_FILE] if pathname.startswith("/dev/davinci") else _glob(pathname, **options)  # type: ignore[arg-type]


glob.glob = _with_device_file  # type: ignore[assignment]
