"""How one run of a sweep ended: done, stopped, or failed for a reason."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from efficientbench.metrics.files import write_whole
from efficientbench.running.output_folder import OutputFolder

STOPPED_STATUSES = (130, 143, -signal.SIGINT, -signal.SIGTERM)
STOPPED_REASON = "stopped by a signal; it goes on when the sweep is started again"
TAIL_BYTES = 16_384
MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|MemoryError", re.IGNORECASE)


@dataclass(frozen=True)
class Failure:
    """The content of `failure.json`, and `time_limit` as a further kind."""

    kind: str
    reason: str
    rank: int | None = None
    step: int | None = None
    checkpoint: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end, has saved its state, and can go on."""
        return self.kind == "stopped"


def failure_of(folder: OutputFolder, exit_code: int, log: Path, since_s: float) -> Failure:
    """Why a command ended with this status and left no complete record.

    Args:
        folder: of the run.
        exit_code: of its command; minus the signal's number where a signal ended it.
        log: what it printed.
        since_s: when it was started, in seconds since the epoch; what the folder holds from before is not of it.
    """
    if exit_code in STOPPED_STATUSES:
        return Failure("stopped", STOPPED_REASON)
    told = _told(folder.failure, since_s)
    if told is not None:
        return told
    line = _last_error(log)
    if exit_code < 0:
        by_kernel = " (the kernel does so when memory runs out)" if -exit_code == signal.SIGKILL else ""
        return Failure("crash", f"ended by {signal.Signals(-exit_code).name}{by_kernel}")
    if exit_code == 2:
        return Failure("mistake", line)
    if exit_code == 0:
        return Failure("crash", f"ended without an error and left no complete record of this run; its output: {log}")
    return Failure("out_of_memory" if MEMORY.search(line) else "crash", line)


def write_failure(folder: OutputFolder, failure: Failure) -> None:
    """Write `failure.json`. Raises MetricsError where it cannot be written."""
    write_whole(folder.failure, json.dumps(asdict(failure), indent=2, ensure_ascii=False) + "\n")


def _told(path: Path, since_s: float) -> Failure | None:
    """What the run itself has left."""
    try:
        if path.stat().st_mtime < since_s - 1:
            return None
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        optional = {key: content.get(key) for key in ("rank", "step", "checkpoint")}
        return Failure(str(content["kind"]), str(content["reason"]), **optional)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _last_error(log: Path) -> str:
    """The last error message that a command printed, else its last line."""
    with log.open("rb") as output:
        output.seek(max(0, output.seek(0, 2) - TAIL_BYTES))
        text = output.read().decode("utf-8", errors="replace")
    errors = list(re.finditer(r"^error: (.*(?:\n  .*)*)", text.replace("\r", "\n"), re.MULTILINE))
    if errors:
        return errors[-1][1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else f"ended without a word; its output: {log}"
