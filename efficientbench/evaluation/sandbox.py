"""Run programs that a model wrote, apart from everything else as far as the kernel allows. It is no security boundary.

Each program has its own interpreter, session, empty environment and temporary folder; `sandboxed.py` gives up the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from efficientbench.evaluation import sandboxed
from efficientbench.evaluation.errors import EvaluationError


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    memory_bytes: int = 512 * 2**20
    """Of its address space."""
    processor_s: int = 5
    """Of processor time, whole seconds, so that a busy machine makes no answer wrong."""
    wall_s: float = 30.0
    """From its start to its end, for programs that wait."""
    file_bytes: int = 16 * 2**20
    """Of a file that it writes."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    ended: str
    """"passed" (it came to its end), "time", "memory", "processes", "file_size", "files", "network", "signals": the
    limit or the refusal that ended it; "error": by any other error; "left": it ended itself before its end, or was
    killed."""
    message: str
    """The error."""
    held: Mapping[str, bool]
    """Which limits and refusals were in force."""

    @property
    def passed(self) -> bool:
        """Whether the program came to its end."""
        return self.ended == "passed"


def run_program(program: str, limits: Limits = Limits()) -> Outcome:
    """Run a Python program.

    Raises:
        EvaluationError: no program can be run here.
    """
    timed_out = False
    # Files and no pipes, which a process that got away would keep open.
    with (
        tempfile.TemporaryDirectory(prefix="program-") as folder,
        tempfile.TemporaryFile() as job,
        tempfile.TemporaryFile() as report,
        tempfile.TemporaryFile() as errors,
    ):
        job.write(json.dumps({"program": program, "limits": asdict(limits)}).encode())
        job.seek(0)
        process = subprocess.Popen(
            # -B: bytecode could not be written.
            [sys.executable, "-I", "-B", str(Path(sandboxed.__file__).resolve())],
            stdin=job,
            stdout=report,
            stderr=errors,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        report.seek(0)
        errors.seek(0)
        lines = report.read().decode().splitlines()
        if not lines:
            problem = errors.read().decode(errors="replace").strip()[-400:]
            raise EvaluationError(f"a program cannot be run here: {problem}")
    held = json.loads(lines[0])
    if len(lines) > 1:
        return Outcome(**json.loads(lines[1]), held=held)
    if timed_out:
        return Outcome("time", f"it ran for more than {limits.wall_s:g} s", held)
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome("time", f"it used more than {limits.processor_s} s of processor time", held)
    return Outcome("left", f"exit status {process.returncode} before its end", held)
