"""Run programs that a model wrote, apart from everything else as far as the kernel allows. It is no security boundary.

Each program has its own interpreter, session, empty environment and temporary folder; `sandboxed.py` gives up the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

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
    # A program may write into files that are open. It does not know this text, without which nothing is a report.
    token = secrets.token_hex(16)
    # Files and no pipes, which a process that got away would keep open.
    with (
        _folder() as folder,
        tempfile.TemporaryFile() as job,
        tempfile.TemporaryFile() as kept,
        tempfile.TemporaryFile() as report,
        tempfile.TemporaryFile() as errors,
    ):
        facts = {"program": program, "limits": asdict(limits), "report": report.fileno(), "token": token}
        job.write(json.dumps(facts).encode())
        job.seek(0)
        process = subprocess.Popen(
            # -B: bytecode could not be written.
            [sys.executable, "-I", "-B", str(Path(sandboxed.__file__).resolve())],
            stdin=job,
            stdout=kept,
            stderr=errors,
            pass_fds=(report.fileno(),),
            cwd=folder,
            env={},
            start_new_session=True,
        )
        timed_out = _wait(process, limits.wall_s)
        holds, reported, problem = (_text(file) for file in (kept, report, errors))
    if not holds:
        raise EvaluationError(f"a program cannot be run here: {problem.strip()[-400:]}")
    held = json.loads(holds)
    ends = [line.removeprefix(token) for line in reported.split("\n") if line.startswith(token)]
    if ends:
        return Outcome(**json.loads(ends[0]), held=held)
    if timed_out:
        return Outcome("time", f"it ran for more than {limits.wall_s:g} s", held)
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome("time", f"it used more than {limits.processor_s} s of processor time", held)
    return Outcome("left", f"exit status {process.returncode} before its end", held)


def _wait(process: subprocess.Popen[bytes], wall_s: float) -> bool:
    """Wait for a program's end, and end it and its session after some time; return whether the time was over."""
    timed_out = False
    try:
        process.wait(wall_s)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return timed_out


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """Make a temporary folder, and remove it with whatever a program left in it."""
    folder = tempfile.mkdtemp(prefix="program-")
    try:
        yield folder
    finally:
        # A program may nest folders deeper than Python's own functions go, and take away the rights to them.
        remove = ["rm", "-rf", folder]
        if subprocess.run(remove, stderr=subprocess.DEVNULL, check=False).returncode:
            subprocess.run(["chmod", "-R", "u+rwx", folder], stderr=subprocess.DEVNULL, check=False)
            subprocess.run(remove, stderr=subprocess.DEVNULL, check=False)
