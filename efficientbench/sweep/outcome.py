"""The end of one run of a sweep: done, stopped, or failed for a reason."""

from __future__ import annotations

import re
from pathlib import Path

from efficientbench.launchers.processes.failure import STOP_EXIT_CODES, USER_MISTAKE, Failure, ended_by, read_failure
from efficientbench.running.output_folder import OutputFolder

STOPPED = Failure("stopped", "stopped by a signal; it goes on when the sweep is started again")
TAIL_BYTES = 16_384


def failure_of(folder: OutputFolder, exit_code: int, log: Path, since_s: float) -> Failure:
    """Return why a command ended with this exit code and left no complete record.

    Args:
        folder: of the run.
        exit_code: of its command; minus the signal's number where a signal ended it.
        log: what it printed.
        since_s: when it was started, in seconds since the epoch; a `failure.json` from before is not its own.
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
    # A command that is refused before it has a folder leaves only what it printed.
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
