"""One rank's process: how it starts, how it is asked to end, and why it ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from efficientbench.basics.files import no_link
from efficientbench.launchers.processes.failure import REPORT_VARIABLE, Failure, FailureKind, ended_by, read_failure
from efficientbench.launchers.processes.heartbeat import Beat, heartbeat_file, read_beat

PR_SET_PDEATHSIG = 1
TAIL_BYTES = 4096
KILL_WAIT_S = 10.0
KERNEL_STATES = {
    "T": "its process is stopped (SIGSTOP)",
    "t": "its process is held by a debugger",
    "D": "its process is inside the kernel, as where a driver or a file system hangs",
}

_ROOT = Path("/")
_libc = ctypes.CDLL(None, use_errno=True)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this interpreter.

    The working directory is not on its import path: a folder called `metrics` there would hide ours.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    run_module = "import runpy, sys; sys.path.remove(''); runpy.run_module(sys.argv.pop(1), {}, '__main__', True)"
    return [sys.executable, "-c", run_module, module, *arguments]


class WorkerProcess:
    """A rank in a session of its own, so that the terminal's Ctrl-C reaches it once, through the launcher."""

    def __init__(
        self, rank: int, argv: list[str], environment: Mapping[str, str], report_file: Path, output_file: Path | None
    ) -> None:
        """Start the process.

        Args:
            rank: its rank.
            argv: its command.
            environment: its environment variables.
            report_file: where it reports its failure.
            output_file: where its stdout and stderr go; None: to those of the launcher.
        """
        self.rank = rank
        self.killed = False
        self.asked_to_end = False
        self._ended_s = 0.0
        self._report_file = report_file
        self._output_file = output_file
        self._output_start = 0
        with contextlib.ExitStack() as stack:
            output = None
            if output_file is not None:
                output = stack.enter_context(open(output_file, "ab", opener=no_link))
                self._output_start = output.tell()
            self._process = subprocess.Popen(
                argv,
                env={**environment, REPORT_VARIABLE: str(report_file)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def exit_code(self) -> int | None:
        """Return the exit code, minus the signal's number where a signal ended it; None while the rank runs."""
        if self._process.returncode is None and self._process.poll() is not None:
            self._ended_s = time.time()
            # Kill whatever the rank itself has started.
            self._kill_group()
        return self._process.returncode

    def send(self, signal_number: int) -> None:
        """Send a signal to the rank's own process; the rank ends its helpers itself."""
        if self.exit_code() is None:
            self.asked_to_end = self.asked_to_end or signal_number == signal.SIGTERM
            self._process.send_signal(signal_number)

    def obeyed(self) -> bool:
        """Return whether the rank ended because it was asked to, and reported nothing."""
        ended_by_it = self.exit_code() in (-signal.SIGTERM, 128 + signal.SIGTERM)
        return self.asked_to_end and ended_by_it and self.report() is None

    def kill(self) -> None:
        """Kill the rank and all that it started, without waiting for the end."""
        if self.exit_code() is None:
            self.killed = True
            self._kill_group()

    def wait_killed(self) -> None:
        """Wait for a killed rank, but not for one that the kernel cannot end, as in a driver that hangs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)

    def report(self) -> Failure | None:
        """Return the failure that the rank itself reported, if any."""
        return read_failure(self._report_file)

    def beat(self) -> Beat | None:
        """Return the rank's last heartbeat; None where it has written none."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        except OSError:
            stat = ""
        # The name, in brackets, may hold anything; the state follows it.
        state = KERNEL_STATES.get(stat.rpartition(")")[2].strip()[:1], "")
        return read_beat(heartbeat_file(self._report_file), state)

    def failure(self, node: int, memory_ran_out: bool) -> Failure:
        """Return why the rank ended: its own report, else the signal, else its exit status and last output.

        `memory_ran_out`: whether the kernel has killed a process for lack of memory since the ranks were started.
        """
        report = self.report()
        if report is not None:
            return replace(report, node=node)
        code = self.exit_code()
        killed = code == -signal.SIGKILL and memory_ran_out
        if killed:
            cause = "killed by the kernel, which had run out of memory for it (the oom_kill counter of its cgroup rose)"
        elif code is not None and code < 0:
            cause = ended_by(-code)
        else:
            cause = f"ended with exit status {code}"
        last_line = self._last_output_line()
        reason = f"{cause}; the last line of {self._output_file}: {last_line}" if last_line else cause
        kind: FailureKind = "out_of_memory" if killed else "lost_rank"
        beat = self.beat()
        step = beat.step if beat is not None else None
        return Failure(kind, reason, code or 1, self.rank, step, None, node, self._ended_s, silent=True)

    def _last_output_line(self) -> str:
        if self._output_file is None:
            return ""
        try:
            with self._output_file.open("rb") as output:
                size = output.seek(0, os.SEEK_END)
                output.seek(max(self._output_start, size - TAIL_BYTES))
                lines = output.read().decode("utf-8", errors="replace").split("\n")
        except OSError:  # somebody has removed the file: the reason comes without the rank's last line
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def memory_kills(root: Path = _ROOT) -> int | None:
    """Return how many processes of this process's cgroup the kernel has killed for lack of memory; None: not counted.

    That is the cgroup's `oom_kill` counter (Linux, cgroup v1 and v2), which the ranks share.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # Inside a container the path may name a folder that only the host sees: then the mount itself is ours.
        for folder in (mount / path.lstrip("/"), mount):
            for name in ("memory.oom_control", "memory.events"):
                for entry in _lines(folder / name):
                    key, _, value = entry.partition(" ")
                    if key == "oom_kill" and value.isdigit():
                        return int(value)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent is gone, so that it does not outlive it unseen."""
    _libc.prctl(PR_SET_PDEATHSIG, number)
