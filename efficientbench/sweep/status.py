"""Tell how far runs are that this or another process trains: one row for each run's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from efficientbench.basics.foreign import json_object
from efficientbench.launchers.processes.failure import read_failure
from efficientbench.metrics.records.stored import current_files
from efficientbench.running.output_folder import OutputFolder
from efficientbench.sweep.progress import progress_of
from efficientbench.sweep.queue import Queue

_LOCKS = Path("/proc/locks")


@dataclass(frozen=True)
class Status:
    """How far one run is."""

    name: str
    """The run's folder below the one that was asked about, or its name in a sweep's queue."""
    state: str
    """`running`, `queued`, `completed`, `stopped`, `failed`, `refused` or `interrupted`."""
    details: tuple[str, ...]
    """Step, speed, loss and time left as text, or the reason of a failure."""


def statuses(folder: Path) -> list[Status]:
    """Return the status of each run below a folder, and of each run that waits in a sweep's queue there."""
    locked = _locked_files()
    paths = sorted({path.parent for name in ("lock", "record.json") for path in current_files(folder, name)})
    paths = [path for path in paths if _is_run(OutputFolder(path), locked)]
    found = [_status(OutputFolder(path), folder, locked) for path in paths]
    seen = {path.resolve() for path in paths}
    return [*found, *(each for path in folder.rglob("sweep/queue") for each in _waiting(path.parents[1], seen))]


def _is_run(run: OutputFolder, locked: set[int]) -> bool:
    """Return whether a run began here, or begins; a mistake that was found before it leaves the lock's file alone."""
    written = (run.config, run.record, run.failure, run.steps)
    return any(path.exists() for path in written) or _is_locked(run, locked)


def _is_locked(run: OutputFolder, locked: set[int]) -> bool:
    lock = run.path / "lock"
    return lock.exists() and lock.stat().st_ino in locked


def _status(run: OutputFolder, folder: Path, locked: set[int]) -> Status:
    name = os.path.relpath(run.path, folder) if run.path != folder else run.path.resolve().name
    job, record, failure = json_object(run.config), json_object(run.record), read_failure(run.failure)
    reached = progress_of(run)
    steps = (job.get("budget") or job).get("steps")
    words = () if reached is None else tuple(reached.words(steps if isinstance(steps, int) else None))
    if _is_locked(run, locked):
        return Status(name, "running", words or ("starting",))
    # Nothing is left to do of a run that ended.
    words = words[:3]
    # The record measures without the warm-up, and without the time of validations and checkpoints.
    if words and record.get("status") == "completed" and isinstance(speed := record.get("tokens_per_s"), int | float):
        words = (words[0], f"{speed:,.0f} tokens/s", *words[2:])
    if failure is not None and failure.kind != "stopped":
        return Status(name, "failed", (*words, f"{failure.kind}: {failure.reason}"))
    return Status(name, str(record.get("status") or "interrupted"), words)


def _waiting(suite: Path, seen: set[Path]) -> Iterator[Status]:
    """Return the runs of a sweep's queue that have no folder of their own yet."""
    queue = Queue(suite)
    for path in sorted((queue.folder / "queue").glob("*.json")):
        state = queue.read(path.stem)
        if state is not None and Path(state.folder).resolve() not in seen:
            yield Status(state.id, state.state, (state.reason,) if state.reason else ())


def _locked_files() -> set[int]:
    """Return the inodes of files that processes of this machine have locked.

    Trying a run's lock instead could refuse a run that starts in this moment.
    """
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return set()
    fields = [line.split() for line in lines if " -> " not in line]
    return {int(words[5].split(":")[2]) for words in fields if words[1] == "FLOCK"}
