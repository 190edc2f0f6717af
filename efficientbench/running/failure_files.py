"""What the parent process leaves of a run that ended before its time: `failure.json`, and a record for the reports."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import datetime, timezone

from efficientbench.devices.base import Device
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.supervision import say
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import write_record
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.record import failed_record
from efficientbench.training.checkpoints.manifest import check_sizes, find_good

NO_RECORD = ("mistake", "stopped")
"""What never was a run has no record; a stopped run writes its own."""


class FailureFiles:
    """Writes both for one attempt at a run."""

    def __init__(self, folder: OutputFolder) -> None:
        self.folder = folder
        self.started_at, self._begin_s = datetime.now(timezone.utc), time.monotonic()

    def write(self, failure: Failure) -> None:
        """`failure.json`: kind, rank, reason, step and the last good checkpoint's folder; null for what is not known.

        A disk that is full keeps it from being written, and must not hide the failure.
        """
        # By their sizes: a scheduler may wait for this process to end. Who goes on from it reads it all.
        checkpoint, _ = find_good(self.folder.path, check_sizes)
        content = {
            "kind": failure.kind,
            "rank": failure.rank,
            "reason": failure.reason,
            "step": failure.step,
            "checkpoint": str(checkpoint) if checkpoint else None,
        }
        with contextlib.suppress(MetricsError):
            write_whole(self.folder.failure, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        # What the user has to mend may be that the command is not that of the run that left it.
        if checkpoint is not None and failure.kind != "mistake":
            say(f"last good checkpoint: {checkpoint}; the same command goes on from there")

    def write_record(self, failure: Failure, job: Job, device: Device, nodes: int) -> None:
        """`record.json` with status `failed`, so that reports show the run as a row with its reason."""
        if failure.kind in NO_RECORD:
            return
        who = f"rank {failure.rank}: " if failure.rank is not None else ""
        reason = f"the run failed ({failure.kind.replace('_', ' ')}): {who}{failure.reason}"
        duration_s = time.monotonic() - self._begin_s
        record = failed_record(job, device, nodes, reason, self.started_at, duration_s)
        with contextlib.suppress(MetricsError):
            write_record(record, self.folder.record)
