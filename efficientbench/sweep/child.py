"""Start one run of a sweep: the command line that a user would type, in a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from efficientbench.basics.files import no_link
from efficientbench.launchers.processes.worker_process import end_with_parent, module_command

KILL_WAIT_S = 10.0
"""Seconds to wait for a killed process to end; a process that the kernel holds longer is abandoned."""


class Child:
    """A running command; when it ends, all processes that it started are killed."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, kept_open: Sequence[int]
    ) -> None:
        """Start `efficientbench ARGUMENTS` without a shell.

        Args:
            arguments: the command line after `efficientbench`.
            environment: the command's environment variables.
            log: the file that gets the command's output.
            kept_open: file descriptors that the command inherits; they hold the locks of its claim.
        """
        self.begin_s, self.begin_time_s = time.monotonic(), time.time()
        self.command = module_command("efficientbench.cli", *arguments)
        with open(log, "wb", opener=no_link) as output:
            self._process = subprocess.Popen(
                self.command,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(kept_open),
                preexec_fn=stop_with_parent,
            )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code: None while the command runs; minus the signal's number if a signal ended it."""
        if self._process.returncode is None and self._process.poll() is not None:
            # The ranks must not outlive the command: the next run gets their devices.
            self._signal_group(signal.SIGKILL)
        return self._process.returncode

    def elapsed_s(self) -> float:
        return time.monotonic() - self.begin_s

    def stop(self) -> None:
        """Ask the command to save and end; it forwards the signal to its ranks."""
        if self.exit_code() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the command and all processes of its session."""
        if self.exit_code() is None:
            self._signal_group(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_WAIT_S)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def stop_with_parent() -> None:
    """Ask the kernel to send SIGTERM when the sweep's process ends: the run saves and frees its claim."""
    end_with_parent(signal.SIGTERM)
