"""Tell which failure an exception means, and write `failure.json` and the record of a run that failed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import FULL_BYTES, MetricsError, NonFiniteError
from efficientbench.devices.deterministic import operator_without
from efficientbench.launchers.processes.failure import USER_MISTAKE, Failure, FailureKind
from efficientbench.launchers.processes.supervision import print_stderr
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.records.summarize import nothing_measured
from efficientbench.running.errors import USERS_MISTAKES, address_limit, is_out_of_memory
from efficientbench.running.job import AnyJob
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import check_sizes, find_good

NO_RECORD = ("mistake", "stopped")
"""Kinds without a record: a mistake never was a run, and a stopped run writes its own record."""
FILE_FIELDS = ("kind", "reason", "rank", "step", "checkpoint")
"""Fields of a failure that `failure.json` holds."""

OUT_OF_MEMORY = re.compile(
    r"out of memory|DefaultCPUAllocator: (not enough memory|can't allocate memory)|STATUS_ALLOC_FAILED"
    r"|Cannot allocate memory",
    re.IGNORECASE,
)
"""Error texts of allocators, of devices and the host, that raise no exception type of their own."""
LOST_PEER = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|remote process exited", re.IGNORECASE
)
"""Error texts of collective backends on a rank that has lost another rank."""
FULL = (errno.ENOSPC, errno.EDQUOT)
FAILED_WRITE = re.compile(r"iostream error|PytorchStreamWriter failed|unexpected pos \d+")
"""Error texts of torch's own writers for a failed write."""
RUST_ERROR = re.compile(r"\(os error (\d+)\)")
"""How libraries in Rust, like safetensors, tell the system's error number."""


def users_mistake(error: BaseException) -> Failure:
    """Return the failure that a user's mistake means; a full disk is a kind of its own."""
    texts = [os.strerror(number) for number in FULL] + ["no space left in"]
    full = any(text in str(error) for text in texts)
    return Failure("full_disk" if full else "mistake", str(error), USER_MISTAKE)


def diagnose(error: Exception, job: AnyJob, log_file: Path) -> Failure:
    """Return the failure that an exception on a rank means. `log_file` holds its traceback."""
    if isinstance(error, USERS_MISTAKES):
        return users_mistake(error)
    if isinstance(error, NonFiniteError):
        return Failure("non_finite", str(error), rank=error.rank, step=error.step)
    operator = operator_without(error)
    if operator is not None:
        reason = f"training.deterministic=true: this device has no deterministic {operator}; remove the key"
        return Failure("mistake", f"{reason} (traceback in {log_file})", USER_MISTAKE)
    if ran_out_of_memory(error):
        helps = address_limit() or job.memory_advice
        what = _first_line(error) or type(error).__name__
        return Failure("out_of_memory", f"out of memory: {what} ({helps}; traceback in {log_file})")
    # The engine raises an exception of its own for a failed write.
    cause = error.__cause__ or error
    text = _first_line(cause)
    rust = RUST_ERROR.search(str(cause))
    if isinstance(cause, OSError) or rust or FAILED_WRITE.search(str(cause)):
        # torch's writers give no error number.
        number = int(rust[1]) if rust else getattr(cause, "errno", errno.EFBIG)
        most_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if number == errno.EFBIG and most_bytes != resource.RLIM_INFINITY:
            reason = f"a file would exceed the limit of {most_bytes / 1e6:,.1f} MB (ulimit -f): {text}"
            return Failure("mistake", reason, USER_MISTAKE)
        folder = min((job.output, job.cache), key=_free_bytes)
        # Ask for the free space as well: numpy, which writes the engine's index, and torch give no error number.
        if number in FULL or _free_bytes(folder) < FULL_BYTES:
            text = text if isinstance(cause, OSError) or rust else f"{os.strerror(errno.ENOSPC)}: {text}"
            reason = f"no space left in {folder} ({text}); free some, or choose another folder"
            return Failure("full_disk", reason, USER_MISTAKE)
    kind: FailureKind = "lost_rank" if LOST_PEER.search(str(error)) else "crash"
    return Failure(kind, f"{type(error).__name__}: {_first_line(error)} (traceback in {log_file})")


def write_failure(folder: OutputFolder, failure: Failure) -> None:
    """Write `failure.json`; a field that is not known is null.

    A full disk, to which it cannot be written, must not hide the failure.
    """
    content = {name: getattr(failure, name) for name in FILE_FIELDS}
    with contextlib.suppress(MetricsError):
        write_whole(folder.failure, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


class FailureFiles:
    """Writes `failure.json` and the record of a failed attempt at a run."""

    def __init__(self, folder: OutputFolder) -> None:
        self.folder = folder
        self.started_at, self._begin_s = datetime.now(timezone.utc), time.monotonic()

    def write(self, failure: Failure) -> None:
        """Write `failure.json`, with the last good checkpoint's folder."""
        # Compare sizes alone: a scheduler may wait for this process to end. The run that resumes verifies the content.
        checkpoint, _ = find_good(self.folder.path, check_sizes)
        write_failure(self.folder, replace(failure, checkpoint=str(checkpoint) if checkpoint else None))
        # The mistake may be that this is not the command of the run that left the checkpoint.
        if checkpoint is not None and failure.kind != "mistake":
            print_stderr(f"last good checkpoint: {checkpoint}; run the same command again to resume")

    def write_record(self, failure: Failure, described: Callable[[], dict[str, Any]]) -> None:
        """Write `record.json` with status `failed`, so that reports show the run as a row with its reason.

        `described` returns what the record says of the job (see `Kind`). An existing record is this attempt's own: a
        rank died after everything was measured and recorded.
        """
        if failure.kind in NO_RECORD or self.folder.record.exists():
            return
        rank = f"rank {failure.rank}: " if failure.rank is not None else ""
        reason = f"the run failed ({failure.kind.replace('_', ' ')}): {rank}{failure.reason}"
        summary, known = nothing_measured(reason), described()
        missing = {
            name: reason for name in ("parameters", "parameters_active", "flops_per_token") if known[name] is None
        }
        unavailable = summary.unavailable | missing | known.get("unavailable", {})
        record = RunRecord(
            **known | summary.values | {"unavailable": unavailable},
            status="failed",
            started_at=self.started_at.isoformat(timespec="milliseconds"),
            duration_s=time.monotonic() - self._begin_s,
        )
        with contextlib.suppress(MetricsError):
            write_record(record, self.folder.record)


def ran_out_of_memory(error: Exception) -> bool:
    """Return whether a device or the host ran out of memory."""
    # Compare names: this module must not import torch.
    names = {each.__name__ for each in type(error).__mro__}
    return (
        "OutOfMemoryError" in names
        or is_out_of_memory(error)
        or (isinstance(error, RuntimeError | OSError) and OUT_OF_MEMORY.search(str(error)) is not None)
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text, for a reason of one line; "" for an error without text."""
    return next(iter(str(error).strip().splitlines()), "")


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free if folder.exists() else sys.maxsize
