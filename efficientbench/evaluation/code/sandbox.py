"""Run programs that a model wrote, apart from everything else as far as the kernel allows. It is no security boundary.

A program and its tests are two processes (`sandboxed.py`), each an interpreter with a session and an empty environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from efficientbench.basics.errors import EvaluationError

_ROOT = str(Path(__file__).resolve().parents[3])
_INSIDE = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from efficientbench.evaluation.code.sandboxed import main; "
    "del sys.path[0]; main()"
)


@dataclass(frozen=True)
class Limits:
    """What a program may use, and its tests once more. No file gets longer, so that memory is all that it fills."""

    memory_bytes: int = 512 * 2**20
    """Of its address space."""
    processor_s: int = 5
    """Of processor time, whole seconds, so that a busy machine makes no answer wrong."""
    wall_s: float = 30.0
    """From its start to its end, for programs that wait."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    ended: str
    """"passed" (it and its tests came to their end), "time", "memory", "processes", "files", "network", "refused": the
    limit or the refusal that ended it; "error": by any other error, of a test too; "left": it ended itself, or was
    killed."""
    message: str
    """The error, without characters that a terminal acts on."""
    held: Mapping[str, bool]
    """Which limits and refusals were in force."""

    @property
    def passed(self) -> bool:
        """Whether the program and its tests came to their end."""
        return self.ended == "passed"


def run_program(program: str, tests: str = "", limits: Limits = Limits()) -> Outcome:
    """Run a Python program and its tests.

    Args:
        program: what the model wrote.
        tests: import functions from the module `program`, and raise an error where those are wrong. They run in a
            process that the program does not reach. What the functions take and return is plain data. Without tests
            it passes by coming to its end, which it can pretend.
        limits: of each of the two.

    Raises:
        EvaluationError: no program can be run here.
    """
    end = time.monotonic() + limits.wall_s
    with contextlib.ExitStack() as stack:
        job, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        job.write(json.dumps({"source": program, "tests": tests}).encode())
        job.seek(0)
        asked, answered = os.pipe(), os.pipe()
        try:
            holder = stack.enter_context(_side("program", limits, (asked[0], answered[1]), None, errors))
            tester = stack.enter_context(_side("tests", limits, (asked[1], answered[0]), job, errors))
        finally:
            for file in (*asked, *answered):
                os.close(file)
        timed_out, exit_status = not _ends(tester, end), tester.returncode
        _kill(tester)
        assert tester.stdout is not None
        holds, _, report = tester.stdout.read().decode().partition("\n")
        outcome = json.loads(report or "{}")
        if outcome.get("ended") == "left":
            # The program's pipes are closed before it can be waited for.
            timed_out, exit_status = not _ends(holder, end), holder.returncode
        errors.seek(0)
        problem = errors.read().decode(errors="replace").strip()[-400:]
    if not holds:
        raise EvaluationError(
            f"a program cannot be run here: {problem or f'nothing came of it in {limits.wall_s:g} s'}"
        )
    held = json.loads(holds)
    if timed_out:
        return Outcome("time", f"it ran for more than {limits.wall_s:g} s", held)
    if outcome.get("ended", "left") != "left":
        return Outcome(outcome["ended"], _printable(outcome["message"]), held)
    if exit_status in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome("time", f"it used more than {limits.processor_s} s of processor time", held)
    return Outcome("left", f"exit status {exit_status} before its end", held)


@contextlib.contextmanager
def _side(
    name: str, limits: Limits, pipes: tuple[int, int], job: IO[bytes] | None, errors: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start one of the two sides, and kill it in the end."""
    words = json.dumps({"memory_bytes": limits.memory_bytes, "processor_s": limits.processor_s})
    process = subprocess.Popen(
        # -B: bytecode could not be written.
        [sys.executable, "-I", "-B", "-c", _INSIDE, name, words, *map(str, pipes)],
        stdin=job or subprocess.DEVNULL,
        stdout=subprocess.PIPE if job else subprocess.DEVNULL,
        stderr=errors,
        pass_fds=pipes,
        cwd="/",
        env={},
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            _kill(process)


def _ends(process: subprocess.Popen[bytes], end: float) -> bool:
    """Wait for a process until some moment; return whether it has ended."""
    try:
        process.wait(max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its session, and wait for its end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
