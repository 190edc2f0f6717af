"""Python runs this at start where this folder is on PYTHONPATH: the driver's device file appears to be there.

That file is what a machine without an Ascend driver cannot have. Everything else the folder brings by being importable.
"""

from __future__ import annotations

import glob

DEVICE_FILE = "/dev/davinci0"

_glob = glob.glob


def _with_device_file(pathname: str, **options: object) -> list[str]:
    return [DEVICE_FILE] if pathname.startswith("/dev/davinci") else _glob(pathname, **options)  # type: ignore[arg-type]


glob.glob = _with_device_file  # type: ignore[assignment]
