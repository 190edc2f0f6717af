"""Keep the queue of a sweep on disk, below the suite's folder, as files that people can read.

    sweep/queue/<id>.json    one run: its state, its command, why it failed
    sweep/log/<id>.log       the output of its command
    sweep/locks/             locked (flock) while a run is running; the kernel frees a lock when its holders have ended

The sweep and the run that it started both hold the run's claim: it is free only after both have ended, also by a kill.
Several sweeps may use one folder, and several machines too, if its file system shares locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.basics.foreign import read_whole
from efficientbench.launchers.processes.failure import STOP_EXIT_CODES, USER_MISTAKE, Failure, ended_by, read_failure
from efficientbench.metrics.files import write_whole
from efficientbench.running.output_folder import OutputFolder

STOPPED = Failure("stopped", "stopped by a signal; it resumes when the sweep is started again")
TAIL_BYTES = 16_384


def failure_of(folder: OutputFolder, exit_code: int, log: Path, since_s: float) -> Failure:
    """Return why a command ended with this exit code and left no complete record.

    Args:
        folder: the run's folder.
        exit_code: the command's exit code; minus the signal's number if a signal ended it.
        log: the file with the command's output.
        since_s: the command's start, in seconds since the epoch; an older `failure.json` is an earlier attempt's.
    """
    if exit_code in (*STOP_EXIT_CODES.values(), *(-number for number in STOP_EXIT_CODES)):
        return STOPPED
    failure = read_failure(folder.failure)
    if failure is not None and folder.failure.stat().st_mtime >= since_s - 1:
        return failure
    if exit_code < 0:
        return Failure("crash", ended_by(-exit_code))
    if exit_code == 0:
        return Failure("crash", f"ended without an error and left no complete record of this run; its output: {log}")
    # A command that is refused before it has a folder leaves only its output.
    return Failure("mistake" if exit_code == USER_MISTAKE else "crash", _last_error(log))


def _last_error(log: Path) -> str:
    """Return the last error message that a command printed, else its last line."""
    with log.open("rb") as output:
        output.seek(max(0, output.seek(0, 2) - TAIL_BYTES))
        text = output.read().decode("utf-8", errors="replace")
    errors = list(re.finditer(r"^error: (.*(?:\n  .*)*)", text.replace("\r", "\n"), re.MULTILINE))
    if errors:
        return errors[-1][1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else f"ended without a message; its output: {log}"


StateName = Literal["queued", "running", "done", "failed", "refused", "stopped"]


@dataclass(frozen=True)
class State:
    """The content of a run's file in the queue."""

    id: str
    state: StateName
    configuration: str
    """Hash of the run's configuration; the state does not count for another configuration."""
    command: list[str]
    folder: str
    attempts: int = 0
    kind: str | None = None
    """Kind of the failure: as in `failure.json`, or `time_limit`."""
    reason: str | None = None
    micro_batch_size: int | None = None
    """The smaller micro-batch of a retry; None if the user's micro-batch was used."""
    started_at: str | None = None
    """Start of the last attempt, UTC, ISO 8601."""
    duration_s: float | None = None
    host: str | None = None
    pid: int | None = None
    """Process number of the run's command while it runs."""


class Claim:
    """Locks that are held together; a child process that inherits the open files holds them too."""

    def __init__(self, descriptors: list[int], places: tuple[str, ...] = ()) -> None:
        self.descriptors = descriptors
        self.places = places
        """The claimed slots."""

    def release(self) -> None:
        """Close the files; a child that inherited them still holds the locks."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class Queue:
    """The states and claims of all runs of a suite."""

    def __init__(self, suite: Path) -> None:
        self.folder = suite / "sweep"
        self._locks = self.folder / "locks"

    def make(self) -> None:
        """Make the queue's folders. Raises ConfigError where they cannot be made."""
        try:
            for path in (self.folder / "queue", self.folder / "log", self._locks):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output: {self.folder} cannot be written: {error.strerror}") from None

    def log(self, task: str) -> Path:
        """Return the file that gets the output of the run's command."""
        return self.folder / "log" / f"{task}.log"

    def read(self, task: str) -> State | None:
        """Return the run's state; None if its file is missing or unreadable."""
        try:
            return TypeAdapter(State).validate_json(read_whole(self._path(task)))
        except (OSError, ValueError):
            return None

    def write(self, state: State) -> None:
        """Replace the run's state on disk. Raises ConfigError where it cannot be written."""
        try:
            write_whole(self._path(state.id), json.dumps(asdict(state), indent=2, ensure_ascii=False) + "\n")
        except MetricsError as error:
            raise ConfigError(str(error)) from None

    def claim(self, task: str) -> Claim | None:
        """Claim the run; return None while another process has it. Raises ConfigError as `changing` does."""
        descriptor = self._locked(f"run_{task}")
        return None if descriptor is None else Claim([descriptor])

    def claim_places(self, host: str, places: tuple[str, ...], needed: int) -> Claim | None:
        """Claim `needed` of a host's slots; return None if fewer are free."""
        claim = Claim([])
        for place in places:
            if len(claim.descriptors) == needed:
                break
            descriptor = self._locked(f"device_{host}_{place.replace('/', '-')}")
            if descriptor is not None:
                claim.descriptors.append(descriptor)
                claim.places += (place,)
        if len(claim.descriptors) == needed:
            return claim
        claim.release()
        return None

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the queue while the block runs: no other sweep enters runs meanwhile.

        Raises:
            ConfigError: the folder cannot be locked.
        """
        descriptor = self._opened("queue")
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                raise self._without_locks(error) from None
            yield
        finally:
            os.close(descriptor)

    def _path(self, task: str) -> Path:
        return self.folder / "queue" / f"{task}.json"

    def _locked(self, name: str) -> int | None:
        descriptor = self._opened(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise self._without_locks(error) from None
        return descriptor

    def _opened(self, name: str) -> int:
        path = self._locks / f"{name}.lock"
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            # For example, another user's sweep has created the file.
            raise ConfigError(f"output: {path} cannot be written: {error.strerror}") from None

    def _without_locks(self, error: OSError) -> ConfigError:
        return ConfigError(f"output: {self._locks} is on a file system without locks ({error.strerror})")
