"""End the processes that runs have left: `bash launchers/cleanup.sh [--dry-run] [FOLDER ...]`.

A launcher marks its ranks by an environment variable that names their log folder, and whatever they start inherits it.
Only marked processes are ever signalled: none is found by its name. Standard library only, so that it needs no set-up.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LOG_VARIABLE = "EFFICIENTBENCH_LOG_FOLDER"
"""Environment variable by which a launcher marks its ranks."""
DEFAULT_FOLDER = Path("output")
STOP_GRACE_S = 60.0
"""Seconds that a run may take to save its state; its launcher gives its ranks as much."""
KILL_WAIT_S = 10.0


def clean(folders: Sequence[Path], dry_run: bool, grace_s: float = STOP_GRACE_S) -> int:
    """End the processes of every run below `folders` on this machine; return how many could not be ended."""
    found = _marked_below(folders)
    for pid, log in found.items():
        print(f"{log.parent}: {'would end' if dry_run else 'ending'} process {pid}: {_command(pid)[:120]}")
    if not found:
        print(f"no process of a run below {', '.join(map(str, folders))} is left")
    if dry_run:
        return 0
    # Stop all ranks at once, since they save together; a rank leads a session of its own. Not its helpers, which it
    # needs to save (that of Weights & Biases leads one, too), nor its launcher, which ends when its ranks have ended.
    ranks = {pid: log for pid, log in found.items() if _leads_its_session(pid) and _parent(pid) not in found}
    for number, processes, limit_s in ((signal.SIGTERM, ranks, grace_s), (signal.SIGKILL, found, KILL_WAIT_S)):
        for pid, log in processes.items():
            _send(pid, log, number)
        _wait(processes, limit_s)
    left = _running(found)
    for pid in left:
        print(f"process {pid} does not end: the kernel holds it, as in a driver call", file=sys.stderr)
    return len(left)


def _marked_below(folders: Sequence[Path]) -> dict[int, Path]:
    """Return process → log folder of its run, for all runs below these folders."""
    resolved = [folder.resolve() for folder in folders]
    logs = {int(entry.name): _log_folder(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    return {
        pid: log
        for pid, log in sorted(logs.items())
        if log is not None and any(folder in (log, *log.parents) for folder in resolved)
    }


def _running(processes: Mapping[int, Path]) -> list[int]:
    return [pid for pid, log in processes.items() if _log_folder(pid) == log]


def _log_folder(pid: int) -> Path | None:
    """Return the log folder that marks a process; None for all others, also those of other users and containers."""
    mark = f"{LOG_VARIABLE}=".encode()
    try:
        # The same path is another folder in another container.
        if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
            return None
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((Path(os.fsdecode(each.removeprefix(mark))) for each in variables if each.startswith(mark)), None)


def _send(pid: int, log: Path, number: signal.Signals) -> None:
    """Send a signal to a process that still belongs to the run."""
    try:
        # From here on the pid cannot pass to another process.
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _log_folder(pid) == log:
            signal.pidfd_send_signal(descriptor, number)
    except OSError as error:
        print(f"process {pid} cannot be signalled: {error.strerror}", file=sys.stderr)
    finally:
        os.close(descriptor)


def _leads_its_session(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getsid(pid) == pid
    return False


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        # The name before it, in brackets, may have spaces.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _wait(processes: Mapping[int, Path], limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while _running(processes) and time.monotonic() < until_s:
        time.sleep(0.1)


def main() -> int:
    """Read the command line and clean up; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="bash launchers/cleanup.sh",
        description="Ends the processes that runs have started and that still run. No other process is touched.",
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[DEFAULT_FOLDER], help="output folders (output)")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be ended")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Paths of earlier runs may have bytes that the locale does not know.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Not Path.is_dir, which raises where a folder above cannot be read.
    missing = [each for each in arguments.folders if not os.path.isdir(each) and arguments.folders != [DEFAULT_FOLDER]]
    if missing:
        print(f"error: {missing[0]} is no folder", file=sys.stderr)
        return 2
    return 1 if clean(arguments.folders, arguments.dry_run) else 0


if __name__ == "__main__":
    sys.exit(main())
