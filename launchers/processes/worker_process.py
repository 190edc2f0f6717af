"""One rank's process: how it starts, how it is told to end, and why it ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from efficientbench.launchers.processes.error_file import ENVIRONMENT_NAME, WorkerError, read_error
from efficientbench.launchers.processes.failure import Failure, Kind
from efficientbench.launchers.processes.liveness import Sign, pulse_file, read_sign

PR_SET_PDEATHSIG = 1
TAIL_BYTES = 4096
KILL_WAIT_S = 10.0
KERNEL_STATES = {
    "T": "its process is stopped (SIGSTOP)",
    "t": "its process is held by a debugger",
    "D": "its process is inside the kernel, as where a driver or a file system hangs",
}

_libc = ctypes.CDLL(None, use_errno=True)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter, without the working directory on its import path.

    A folder called ``metrics`` in the user's working directory would hide ours otherwise.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    run_module = "import runpy, sys; sys.path.remove(''); runpy.run_module(sys.argv.pop(1), {}, '__main__', True)"
    return [sys.executable, "-c", run_module, module, *arguments]


class WorkerProcess:
    """A rank in a session of its own, so that the terminal's Ctrl-C reaches it once, through the launcher."""

    def __init__(
        self, rank: int, argv: list[str], environment: Mapping[str, str], error_file: Path, output_file: Path | None
    ) -> None:
        """Starts the process. Without ``output_file`` it writes to the launcher's own stdout and stderr."""
        self.rank = rank
        self.killed = False
        self.asked_to_end = False
        self._ended_s = 0.0
        self._error_file = error_file
        self._output_file = output_file
        self._output_start = 0
        with contextlib.ExitStack() as stack:
            output = None
            if output_file is not None:
                output = stack.enter_context(output_file.open("ab"))
                self._output_start = output.tell()
            self._process = subprocess.Popen(
                argv,
                env={**environment, ENVIRONMENT_NAME: str(error_file)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """``None`` while the rank runs; minus the signal's number where a signal ended it."""
        if self._process.returncode is None and self._process.poll() is not None:
            self._ended_s = time.time()
            # What the rank itself had started goes with it.
            self._signal_group(signal.SIGKILL)
        return self._process.returncode

    def send(self, signal_number: int) -> None:
        """Passes a signal to the rank's own process; its helpers are the rank's to end."""
        if self.exit_code() is None:
            self.asked_to_end = self.asked_to_end or signal_number == signal.SIGTERM
            self._process.send_signal(signal_number)

    def obeyed(self) -> bool:
        """Whether the rank ended because it was asked to, and has nothing else to say."""
        ended_by_it = self.exit_code() in (-signal.SIGTERM, 128 + signal.SIGTERM)
        return self.asked_to_end and ended_by_it and self.report() is None

    def kill(self) -> None:
        """Ends the rank and all that it started, without waiting for it."""
        if self.exit_code() is None:
            self.killed = True
            self._signal_group(signal.SIGKILL)

    def wait_killed(self) -> None:
        """Waits for a killed rank, but not for one that the kernel cannot end, as in a driver that hangs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)

    def report(self) -> WorkerError | None:
        """What the rank itself has told of its end, if anything."""
        return read_error(self._error_file)

    def sign(self) -> Sign | None:
        """The rank's last sign of life; None where it has given none."""
        return read_sign(pulse_file(self._error_file), self._kernel_says())

    def _kernel_says(self) -> str:
        """What the kernel tells of the process where that explains why it does nothing."""
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return ""
        return KERNEL_STATES.get(state, "")

    def failure(self, node: int, memory_ran_out: bool) -> Failure:
        """Why the rank ended: its own words, else the signal, else its exit status and last output.

        `memory_ran_out`: whether the kernel has killed a process for want of memory since the ranks were started.
        """
        report = self.report()
        if report is not None:
            return Failure(
                report.kind, report.rank, report.reason, report.exit_code, report.step, node, time_s=report.time_s
            )
        code = self.exit_code()
        killed = code == -signal.SIGKILL and memory_ran_out
        if killed:
            cause = "killed by the kernel, which had run out of memory for it (the oom_kill counter of its cgroup rose)"
        elif code is not None and code < 0:
            cause = f"ended by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                cause += " (the kernel does so when memory runs out)"
        else:
            cause = f"ended with exit status {code}"
        last_line = self._last_output_line()
        reason = f"{cause}; the last line of {self._output_file}: {last_line}" if last_line else cause
        kind: Kind = "out_of_memory" if killed else "lost_rank"
        sign = self.sign()
        step = sign.step if sign is not None else None
        return Failure(kind, self.rank, reason, code or 1, step, node, self._ended_s, silent=True)

    def _last_output_line(self) -> str:
        if self._output_file is None:
            return ""
        try:
            with self._output_file.open("rb") as output:
                size = output.seek(0, os.SEEK_END)
                output.seek(max(self._output_start, size - TAIL_BYTES))
                lines = output.read().decode("utf-8", errors="replace").split("\n")
        except OSError:  # somebody has cleaned up: why the rank ended is told without its last words
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _signal_group(self, signal_number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal_number)


def _end_with_parent() -> None:
    """Asks the kernel to kill this process when the launcher is gone, so that no rank outlives it unseen."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
