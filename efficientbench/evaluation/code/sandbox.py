"""Run programs that a model wrote, isolated as far as the kernel allows. This is no security boundary.

A program and its tests run in two processes (`sandboxed.py`), each with its own session and an empty environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
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

START_S = 300.0
"""Seconds that the two interpreters may take to start: on a busy machine, or from a slow file system, many."""


@dataclass(frozen=True)
class Limits:
    """The limits of a program, and equally of its tests. No file can grow, so that they can fill nothing but memory."""

    memory_bytes: int = 512 * 2**20
    """The size of the address space."""
    processor_s: int = 5
    """Processor time, whole seconds: unlike wall time, it does not depend on how busy the machine is."""
    wall_s: float = 30.0
    """Wall time of program and tests together from the start of both, for programs that wait."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    ended: str
    """"passed": program and tests completed; "time", "memory", "processes", "files", "network", "refused": the limit or
    the refusal that ended the program; "error": any other error, also of a test; "left": it exited, or was killed."""
    message: str
    """The error, without control characters."""
    held: Mapping[str, bool]
    """Which limits and refusals were in force."""

    @property
    def passed(self) -> bool:
        """Whether the program and its tests completed."""
        return self.ended == "passed"


def run_program(program: str, tests: str = "", limits: Limits = Limits()) -> Outcome:
    """Run a Python program and its tests.

    Args:
        program: the source that the model wrote.
        tests: the source of the tests. They import functions from the module `program`, and raise an error if the
            functions are wrong. They run in a process that the program cannot reach; arguments and results are plain
            data. Without tests a program passes if it completes, which it can fake.
        limits: the limits of program and tests.

    Raises:
        EvaluationError: no program can run on this machine.
    """
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
        assert tester.stdout is not None
        holds = _first_line(tester.stdout, START_S)
        end = time.monotonic() + limits.wall_s
        timed_out, exit_status = bool(holds) and not _ends(tester, end), tester.returncode
        _kill(tester)
        outcome = json.loads(tester.stdout.read() or b"{}")
        if outcome.get("ended") == "left":
            # The program's pipes close before the process can be reaped.
            timed_out, exit_status = not _ends(holder, end), holder.returncode
        errors.seek(0)
        problem = errors.read().decode(errors="replace").strip()[-400:]
    if not holds:
        raise EvaluationError(
            f"a program cannot be run here: {problem or f'its two interpreters did not start within {START_S:g} s'}"
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
    """Start the side `name` ("program" or "tests"), and kill it when the block ends."""
    words = json.dumps({"memory_bytes": limits.memory_bytes, "processor_s": limits.processor_s})
    process = subprocess.Popen(
        # -B: no bytecode, which could not be written.
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


def _first_line(stream: IO[bytes], limit_s: float) -> bytes:
    """Return the first line of a pipe, which arrives whole; nothing if none arrives in time, or the pipe closes."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return stream.readline() if poll.poll(limit_s * 1000) else b""


def _ends(process: subprocess.Popen[bytes], end: float) -> bool:
    """Wait for a process until the time `end` (`time.monotonic`); return whether the process has ended."""
    try:
        process.wait(max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its process group, and wait for the process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
