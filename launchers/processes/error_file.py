"""How a worker tells the process that started it why it ends: one small JSON file for each rank."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from efficientbench.launchers.processes.failure import Kind, kind_named

ENVIRONMENT_NAME = "EFFICIENTBENCH_ERROR_FILE"


@dataclass(frozen=True)
class WorkerError:
    """Why a rank ended: a reason for people, the exit code it asks for, and when (seconds since the epoch)."""

    rank: int
    """Whose error it is, which need not be the rank that reports it."""
    reason: str
    exit_code: int
    time_s: float
    kind: Kind = "crash"
    step: int | None = None
    """The optimizer step in which it happened, where that is known."""


def report_error(
    reason: str, exit_code: int, kind: Kind = "crash", rank: int | None = None, step: int | None = None
) -> None:
    """Called by a worker before it ends with an error; does nothing where no launcher asked for the file.

    Call it before closing sockets or process groups: the earliest report is taken for the cause. `rank` names the rank
    whose error it is, where that is not this one.
    """
    path = os.environ.get(ENVIRONMENT_NAME)
    if not path:
        return
    own_rank = int(os.environ.get("RANK", "0"))
    error = WorkerError(own_rank if rank is None else rank, reason, exit_code, time.time(), kind, step)
    partial = Path(f"{path}.partial")
    # A full disk must not hide the error that is being reported.
    with contextlib.suppress(OSError):
        partial.write_text(json.dumps(asdict(error)), encoding="utf-8")
        os.replace(partial, path)


def read_error(path: Path) -> WorkerError | None:
    """What a worker reported, or ``None`` where it reported nothing that can be read."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        step = fields.get("step")
        return WorkerError(
            rank=int(fields["rank"]),
            reason=str(fields["reason"]),
            exit_code=int(fields["exit_code"]),
            time_s=float(fields["time_s"]),
            kind=kind_named(fields.get("kind")),
            step=None if step is None else int(step),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
