"""What an exception that ended a rank means: its kind, what to tell people, and the exit code that goes with it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from efficientbench.launchers.processes.failure import Kind
from efficientbench.launchers.processes.supervision import USER_MISTAKE
from efficientbench.running.errors import is_users_mistake
from efficientbench.running.job import Job
from efficientbench.training.errors import FULL_BYTES, NonFiniteError

OUT_OF_MEMORY = re.compile(
    r"out of memory|DefaultCPUAllocator: (not enough memory|can't allocate memory)|STATUS_ALLOC_FAILED"
    r"|Cannot allocate memory",
    re.IGNORECASE,
)
"""What devices' and the host's allocators say where no exception of its own tells it."""
LOST_PEER = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|remote process exited", re.IGNORECASE
)
"""What the collectives' backends say on a rank that has lost another one."""
FULL = (errno.ENOSPC, errno.EDQUOT)
FAILED_WRITE = re.compile(r"iostream error|PytorchStreamWriter failed|unexpected pos \d+")
"""What torch's own writers say of a write that failed."""


@dataclass(frozen=True)
class Diagnosis:
    """One exception, understood."""

    kind: Kind
    reason: str
    exit_code: int
    rank: int | None = None
    """Whose error it is, where that is not the rank that raised it."""
    step: int | None = None


def diagnose(error: Exception, job: Job, log_file: Path) -> Diagnosis:
    """What ended a rank. `log_file` is where its traceback stands."""
    if is_users_mistake(error):
        return Diagnosis(mistake_kind(error), str(error), USER_MISTAKE)
    if isinstance(error, NonFiniteError):
        return Diagnosis("non_finite", str(error), 1, error.rank, error.step)
    # The engine tells a failed write by an exception of its own.
    cause = error.__cause__ or error
    if _is_out_of_memory(error):
        helps = "a smaller training.micro_batch_size, training.recompute=full or more ranks would help"
        return Diagnosis("out_of_memory", f"out of memory: {_first_line(error)} ({helps}; traceback in {log_file})", 1)
    if isinstance(cause, OSError) or FAILED_WRITE.search(str(cause)):
        folder = min((job.output, Path(job.config.data.cache)), key=_free_bytes)
        # By the space that is left as well: numpy, which writes the engine's index, and torch give no error number.
        if getattr(cause, "errno", None) in FULL or _free_bytes(folder) < FULL_BYTES:
            told = str(cause) if isinstance(cause, OSError) else f"{os.strerror(errno.ENOSPC)}: {cause}"
            reason = f"no space left in {folder} ({told}); free some, or choose another folder"
            return Diagnosis("full_disk", reason, USER_MISTAKE)
    told = f"{type(error).__name__}: {error} (traceback in {log_file})"
    return Diagnosis("lost_rank" if LOST_PEER.search(str(error)) else "crash", told, 1)


def mistake_kind(error: BaseException) -> Kind:
    """A full disk among the user's mistakes is a kind of its own."""
    texts = [os.strerror(number) for number in FULL] + ["no space left in"]
    return "full_disk" if any(text in str(error) for text in texts) else "mistake"


def _is_out_of_memory(error: Exception) -> bool:
    # By name: torch's own is imported by no one who need not have torch.
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & {"OutOfMemoryError", "MemoryError"}) or (
        isinstance(error, RuntimeError | OSError) and OUT_OF_MEMORY.search(str(error)) is not None
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free if folder.exists() else sys.maxsize
