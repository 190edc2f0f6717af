"""A rank's signs of life: where it is, written beside its error file by a thread of its own.

That is twice a second, and at once where the rank enters another phase.

A rank whose signs stop is itself stopped; from the others' signs one sees who waits for whom.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from efficientbench.launchers.processes.error_file import ENVIRONMENT_NAME

INTERVAL_S = 0.5
STARTS = "starting"


@dataclass(frozen=True)
class Sign:
    """One sign of life."""

    step: int = 0
    """The optimizer step that is under way; 0 before the first."""
    phase: str = STARTS
    collectives: dict[str, int] = field(default_factory=dict)
    """Process group, by the name that all its ranks give it → collectives that this rank has begun in it."""
    where: str = ""
    """The line of the program's own code that the rank is in."""
    waits: bool = False
    """Whether it is inside a collective."""
    time_s: float = 0.0
    """When it was given, in seconds since the epoch, by the rank's own host."""
    age_s: float = 0.0
    """How old it was when the launcher read it."""
    process: str = ""
    """What the kernel says of the process, where that explains its silence."""


class Pulse:
    """Gives signs of life of this process, once `start` is called; does nothing where no launcher asked for them."""

    def __init__(self) -> None:
        error_file = os.environ.get(ENVIRONMENT_NAME)
        self._path = pulse_file(Path(error_file)) if error_file else None
        self._step, self._phase = 0, STARTS
        self._changed = threading.Event()
        self._main_thread = threading.get_ident()
        self.collectives: Callable[[], dict[str, int]] = dict
        """Counts the collectives begun in each process group."""

    def start(self) -> None:
        """Give signs until the process ends."""
        if self._path is not None:
            threading.Thread(target=self._give_signs, name="pulse", daemon=True).start()

    def at(self, step: int, phase: str) -> None:
        """Note where this rank is; within a phase that costs nothing, the next sign tells it."""
        changed = phase != self._phase
        self._step, self._phase = step, phase
        if changed:
            self._changed.set()

    def _give_signs(self) -> None:
        assert self._path is not None
        beside = self._path.with_suffix(".partial")
        while True:
            # The launcher removes the folder when all ends, and a full disk must not end this thread.
            with contextlib.suppress(OSError):
                beside.write_text(json.dumps(asdict(self._sign())), encoding="utf-8")
                os.replace(beside, self._path)
            self._changed.wait(INTERVAL_S)
            self._changed.clear()

    def _sign(self) -> Sign:
        try:
            collectives = self.collectives()
        except Exception:  # a backend that does not count, or groups that are being made or destroyed
            collectives = {}
        where, waits = _place(sys._current_frames().get(self._main_thread))
        return Sign(self._step, self._phase, collectives, where, waits, time.time())


def pulse_file(error_file: Path) -> Path:
    """Where the rank with this error file gives its signs of life."""
    return error_file.with_suffix(".pulse")


def read_sign(path: Path, process: str) -> Sign | None:
    """The last sign of life; None where there was none. `process`: what the kernel says of the process."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        age_s = max(0.0, time.time() - fields["time_s"])
        return Sign(**{**fields, "age_s": age_s, "process": process})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _place(frame: FrameType | None) -> tuple[str, bool]:
    """The innermost line of the program's own package that a thread is in, and whether it is inside a collective."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    own = spec.name.partition(".")[0] if spec is not None else "__main__"
    where, waits = "", False
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        waits = waits or module.startswith("torch.distributed")
        if not where and module.partition(".")[0] == own:
            where = f"{module} line {frame.f_lineno}"
        frame = frame.f_back
    return where, waits
