"""Programs that print where nobody reads any more."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import environment

PROGRAM = """
import sys
from efficientbench.basics.readers import outlive_readers
outlive_readers(pipes={pipes})
print("Größe", flush=True)
sys.stdin.readline()
for stream in (sys.stdout, sys.stderr):
    print("x" * 100_000, file=stream)
    print("never read", file=stream, flush=True)
open({done!r}, "w").close()
print("nor this")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("terminal", "pipes"), [(True, False), (False, True)])
def test_a_program_continues_after_its_reader_is_gone(
    tmp_path: Path, terminal: bool, pipes: bool, unbuffered: str
) -> None:
    reading, writing = pty.openpty() if terminal else os.pipe()
    program = PROGRAM.format(pipes=pipes, done=str(tmp_path / "done"))
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(PYTHONUNBUFFERED=unbuffered, PYTHONIOENCODING="utf-8"),
        stdin=subprocess.PIPE,
        stdout=writing,
        stderr=writing,
    )
    os.close(writing)
    assert os.read(reading, 100).decode().rstrip() == "Größe"
    os.close(reading)
    process.communicate(b"\n", timeout=60)
    assert (process.returncode, (tmp_path / "done").exists()) == (0, True)


def test_a_closed_pipe_ends_a_command_that_only_prints(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = PROGRAM.format(pipes=False, done=str(tmp_path / "done"))
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment(), stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert b"BrokenPipeError" in process.stderr
