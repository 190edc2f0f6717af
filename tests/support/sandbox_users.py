"""Programs in the sandbox, run by this user, or by nobody where this one is root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from support.repository import ROOT

from efficientbench.evaluation.code.sandbox import run_program

USERS = ("self", pytest.param("nobody", marks=pytest.mark.proof))
NOBODY = 65534
_RUN = """
import json, sys
from efficientbench.evaluation.code.sandbox import run_program
outcome = run_program(*sys.argv[1:])
print(json.dumps([outcome.ended, outcome.message]))
"""


def user_id(user: str) -> int:
    """The id of a user; the test is left out where this process cannot become that one."""
    if user == "self":
        return os.geteuid()
    if os.geteuid() != 0:
        pytest.skip("this process is not root's")
    return NOBODY


def run_as(user: str, program: str, tests: str = "") -> tuple[str, str]:
    """How a program ended, and its message."""
    if user == "self":
        outcome = run_program(program, tests)
        return outcome.ended, outcome.message
    # One that everybody may start.
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("there is no python3 in /usr/bin")
    done = subprocess.run(
        [python, "-B", "-c", _RUN, program, tests],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    if b"No module named 'efficientbench'" in done.stderr:
        pytest.skip("others may not read this checkout")
    ended, message = json.loads(done.stdout or b"[]") or ("none", done.stderr.decode())
    return ended, message
