"""How a worker tells the process that started it why it ends: one small JSON file for each rank."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ENVIRONMENT_NAME = "EFFICIENTBENCH_ERROR_FILE"


@dataclass(frozen=True)
class WorkerError:
    """Why a rank ended: a reason for people, the exit code it asks for, and when (seconds since the epoch)."""

    rank: int
    reason: str
    exit_code: int
    time_s: float


def report_error(reason: str, exit_code: int) -> None:
    """Called by a worker before it ends with an error; does nothing where no launcher asked for the file.

    Call it before closing sockets or process groups: the earliest report is taken for the cause.
    """
    path = os.environ.get(ENVIRONMENT_NAME)
    if not path:
        return
    error = WorkerError(int(os.environ.get("RANK", "0")), reason, exit_code, time.time())
    partial = Path(f"{path}.partial")
    # A full disk must not hide the error that is being reported.
    with contextlib.suppress(OSError):
        partial.write_text(json.dumps(asdict(error)), encoding="utf-8")
        os.replace(partial, path)


def read_error(path: Path) -> WorkerError | None:
    """What a worker reported, or ``None`` where it reported nothing that can be read."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return WorkerError(
            int(fields["rank"]), str(fields["reason"]), int(fields["exit_code"]), float(fields["time_s"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
