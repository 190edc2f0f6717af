"""The queue of a sweep on disk, below the suite's folder, where people can read it.

    sweep/queue/<id>.json    one run: its state, its command, why it failed
    sweep/log/<id>.log       what its command printed
    sweep/locks/             held (flock) while a run goes on; the kernel lets go of them when their holders have ended

A claim is held by the sweep and by the run that it started: it is free again only once both have ended, however they
ended. Several sweeps may use one folder, also from several machines where its file system shares locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from efficientbench.config.errors import ConfigError
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.files import write_whole

StateName = Literal["queued", "running", "done", "failed", "refused", "stopped"]


@dataclass(frozen=True)
class State:
    """What is known of one run."""

    id: str
    state: StateName
    configuration: str
    """Of the run as it was when this was written; another configuration begins anew."""
    command: list[str]
    folder: str
    attempts: int = 0
    kind: str | None = None
    """Of a failure: as in `failure.json`, and `time_limit`."""
    reason: str | None = None
    micro_batch_size: int | None = None
    """Used, where memory did not suffice for the one asked for."""
    started_at: str | None = None
    """UTC, ISO 8601."""
    duration_s: float | None = None
    host: str | None = None
    pid: int | None = None
    """Of the run's command while it runs."""


class Claim:
    """Locks that are held together, by open files that a child can hold too."""

    def __init__(self, descriptors: list[int], places: tuple[str, ...] = ()) -> None:
        self.descriptors = descriptors
        self.places = places
        """The slots that the claim is of."""

    def release(self) -> None:
        """Let go; a child that was given the descriptors holds on."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class Queue:
    """The runs of a suite's folder and who runs them."""

    def __init__(self, suite: Path) -> None:
        self.folder = suite / "sweep"
        self._locks = self.folder / "locks"

    def make(self) -> None:
        """The folders. Raises ConfigError where they cannot be made."""
        try:
            for path in (self.folder / "queue", self.folder / "log", self._locks):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output: {self.folder} cannot be written: {error.strerror}") from None

    def log(self, task: str) -> Path:
        """Where the run's command prints to."""
        return self.folder / "log" / f"{task}.log"

    def read(self, task: str) -> State | None:
        """The run's state; None where it has none that can be read."""
        try:
            content = json.loads(self._path(task).read_text(encoding="utf-8"))
            known = {field.name for field in fields(State)}
            return State(**{key: value for key, value in content.items() if key in known})
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def write(self, state: State) -> None:
        """Write the run's state, beside its place and then renamed.

        Raises ConfigError where it cannot be written.
        """
        try:
            write_whole(self._path(state.id), json.dumps(asdict(state), indent=2, ensure_ascii=False) + "\n")
        except MetricsError as error:
            raise ConfigError(str(error)) from None

    def claim(self, task: str) -> Claim | None:
        """The run, for the caller alone; None while anybody has it. Raises ConfigError as `changing` does."""
        descriptor = self._locked(f"run_{task}")
        return None if descriptor is None else Claim([descriptor])

    def claim_places(self, host: str, places: tuple[str, ...], needed: int) -> Claim | None:
        """So many of a host's slots; None where fewer are free."""
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
        """While no other sweep begins or changes the states of many runs.

        Raises ConfigError where the folder takes no locks.
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
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            # As where another user's sweep has made it.
            raise ConfigError(f"output: {path} cannot be written: {error.strerror}") from None

    def _without_locks(self, error: OSError) -> ConfigError:
        return ConfigError(f"output: {self._locks} is on a file system without locks ({error.strerror})")
