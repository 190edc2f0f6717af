"""Ends what runs have left: `bash launchers/cleanup.sh [--dry-run] [FOLDER ...]`.

Only processes that a run's own record lists (process_record.py) and that are still the same ones; never by name, and
nothing is deleted but the records of those that have ended. Standard library only, so that it needs no set-up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from efficientbench.launchers.processes.process_record import PATTERN, RecordedProcess, read_record

DEFAULT_FOLDER = Path("output")
STOP_GRACE_S = 60.0
"""The time that a run has to save its state; its launcher gives its ranks as much."""
KILL_WAIT_S = 10.0


def clean(folders: Sequence[Path], dry_run: bool, grace_s: float = STOP_GRACE_S) -> int:
    """Ends the recorded processes of every run below ``folders``; returns how many could not be ended."""
    left = 0
    records = sorted(record for folder in folders for record in folder.rglob(f"log/{PATTERN}"))
    for record in records:
        try:
            processes = read_record(record)
        except ValueError as error:
            print(f"passed over: {error}", file=sys.stderr)
            continue
        if processes is None:
            print(f"{record}: of another machine, container or boot: passed over")
            continue
        running = [process for process in processes if process.is_running()]
        print(f"{record.parent.parent}: {len(running)} of {len(processes)} recorded processes run")
        for process in running:
            print(f"  {'would end' if dry_run else 'ending'} process {process.pid}: {' '.join(process.command)[:120]}")
        if dry_run:
            continue
        # The launcher comes first in its record.
        still = _end(processes[0], running, grace_s) if running else []
        for process in still:
            print(f"  process {process.pid} does not end: the kernel holds it, as in a driver call", file=sys.stderr)
        left += len(still)
        if not still:
            record.unlink(missing_ok=True)
    if not records:
        print(f"no run has left a record of processes below {', '.join(map(str, folders))}")
    return left


def _end(launcher: RecordedProcess, processes: Sequence[RecordedProcess], grace_s: float) -> list[RecordedProcess]:
    """Those that still run after a request, which lets the run save its state, and a kill."""
    if launcher in processes:
        # It passes the request on, and ends its ranks in order.
        _send(launcher, signal.SIGTERM)
        _wait([launcher], grace_s)
    if any(process != launcher for process in processes):
        # Together: a rank that waits for the others would not end by a word to itself alone.
        for process in processes:
            _send(process, signal.SIGTERM)
        _wait(processes, grace_s)
    for process in processes:
        # A rank leads a group of its own: what it has started goes with it.
        if process.is_running() and _leads_a_group(process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        _send(process, signal.SIGKILL)
    _wait(processes, KILL_WAIT_S)
    return [process for process in processes if process.is_running()]


def _send(process: RecordedProcess, number: signal.Signals) -> None:
    """A signal to this very process: the descriptor keeps its number from passing to another between look and word."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if process.is_running():
            signal.pidfd_send_signal(descriptor, number)
    except OSError as error:
        print(f"  process {process.pid} cannot be signalled: {error.strerror}", file=sys.stderr)
    finally:
        os.close(descriptor)


def _leads_a_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except OSError:
        return False


def _wait(processes: Sequence[RecordedProcess], limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while any(process.is_running() for process in processes) and time.monotonic() < until_s:
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bash launchers/cleanup.sh",
        description="Ends the processes that runs have recorded and that still run. No other process is touched.",
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[DEFAULT_FOLDER], help="output folders (output)")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be ended")
    asked = parser.parse_args()
    missing = [folder for folder in asked.folders if not folder.is_dir() and asked.folders != [DEFAULT_FOLDER]]
    if missing:
        print(f"error: {missing[0]} is no folder", file=sys.stderr)
        return 2
    return 1 if clean(asked.folders, asked.dry_run) else 0


if __name__ == "__main__":
    sys.exit(main())
