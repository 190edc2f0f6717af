"""Heartbeats of a rank: which step, phase and line it is in, so that the launcher sees which ranks wait for which.

A thread of its own writes a heartbeat beside the rank's failure report twice a second, and at once in a new phase. If
the heartbeats stop, the rank's process itself is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType

from pydantic import TypeAdapter

from efficientbench.basics.foreign import read_whole
from efficientbench.launchers.files import write_whole
from efficientbench.launchers.processes.failure import REPORT_VARIABLE

INTERVAL_S = 0.5
STARTING = "starting"


@dataclass(frozen=True)
class Beat:
    """One heartbeat."""

    step: int = 0
    """The optimizer step that is under way; 0 before the first."""
    phase: str = STARTING
    collectives: dict[str, int] = field(default_factory=dict)
    """Process group, by the name that all its ranks give it → number of collectives that this rank has begun in it."""
    line: str = ""
    """The line of the program's own code that the rank is in."""
    waits: bool = False
    """Whether the rank is inside a collective."""
    time_s: float = 0.0
    """When the rank wrote it, in seconds since the epoch, by the rank's own clock."""
    age_s: float = 0.0
    """Seconds from its writing to the launcher's reading."""
    process_state: str = ""
    """What the kernel reports of the process, where that explains its silence."""


_BEAT = TypeAdapter(Beat)


class HeartbeatWriter:
    """Writes this process's heartbeats once `start` is called, unless no launcher started this process."""

    def __init__(self) -> None:
        report = os.environ.get(REPORT_VARIABLE)
        self._path = heartbeat_file(Path(report)) if report else None
        self._step, self._phase = 0, STARTING
        self._changed = threading.Event()
        self._main_thread = threading.get_ident()
        self.collectives: Callable[[], dict[str, int]] = dict
        """Counts the collectives begun in each process group."""

    def start(self) -> None:
        """Write heartbeats until the process ends."""
        if self._path is not None:
            threading.Thread(target=self._write_beats, args=(self._path,), name="heartbeat", daemon=True).start()

    def at(self, step: int, phase: str) -> None:
        """Note where this rank is. Within a phase this costs nothing: the next heartbeat carries it."""
        changed = phase != self._phase
        self._step, self._phase = step, phase
        if changed:
            self._changed.set()

    def _write_beats(self, path: Path) -> None:
        while True:
            # The launcher removes the folder at the end, and a full disk must not end this thread.
            with contextlib.suppress(OSError):
                write_whole(path, json.dumps(asdict(self._beat())).encode())
            self._changed.wait(INTERVAL_S)
            self._changed.clear()

    def _beat(self) -> Beat:
        try:
            collectives = self.collectives()
        except Exception:  # a backend that does not count, or groups that are being made or destroyed
            collectives = {}
        line, waits = _place(sys._current_frames().get(self._main_thread))
        return Beat(self._step, self._phase, collectives, line, waits, time.time())


def heartbeat_file(report: Path) -> Path:
    """Return the heartbeat file of the rank that reports its failure in `report`."""
    return report.with_suffix(".heartbeat")


def read_beat(path: Path, process_state: str) -> Beat | None:
    """Return a rank's last heartbeat; None where there is none."""
    try:
        beat = _BEAT.validate_json(read_whole(path))
    except (OSError, ValueError):
        return None
    return replace(beat, age_s=max(0.0, time.time() - beat.time_s), process_state=process_state)


def _place(frame: FrameType | None) -> tuple[str, bool]:
    """Return a thread's innermost line in the program's own package, and whether it is inside a collective."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    own = spec.name.partition(".")[0] if spec is not None else "__main__"
    line, waits = "", False
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        waits = waits or module.startswith("torch.distributed")
        if not line and module.partition(".")[0] == own:
            line = f"{module} line {frame.f_lineno}"
        frame = frame.f_back
    return line, waits
