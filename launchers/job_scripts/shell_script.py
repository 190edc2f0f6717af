"""Writes shell scripts that start a run elsewhere, with every argument quoted, and checks them first."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.files import FROM_CLONE, write_whole
from efficientbench.launchers.job_scripts.container import Surroundings

JOB_SCRIPT = Path(__file__).resolve().with_name("job.sh")


def array(name: str, elements: Sequence[str], indent: str = "") -> str:
    """Return a bash array of these elements, whatever characters they hold."""
    return "\n".join([f"{indent}{name}=(", *(f"{indent}    {shlex.quote(each)}" for each in elements), f"{indent})"])


def extras_of(command: str) -> list[str]:
    """Return the extras of launchers/bootstrap.sh that a command of `efficientbench` needs."""
    return ["finetune"] if command == "finetune" else []


def beginning(folder: Path, around: Surroundings, exports: dict[str, str] | None = None, command: str = "run") -> str:
    """Return the first lines of every script, which change to `folder` and set up modules and Python's environment.

    In `folder` relative paths mean what they meant when the script was written. `command`: the command of
    `efficientbench` that the script calls.
    """
    lines = ["set -euo pipefail", f"cd -- {shlex.quote(str(folder))}"]
    if around.container is None and not FROM_CLONE:
        # A wheel's installation has no .venv that bootstrap could find on the node: put this interpreter on PATH.
        lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    lines += [f"export {name}={shlex.quote(value)}" for name, value in (exports or {}).items()]
    lines += ["# shellcheck source=/dev/null", f"source {shlex.quote(str(JOB_SCRIPT))}"]
    return "\n".join([*lines, *around.set_up(extras_of(command))])


def check(script: str) -> None:
    """Check a script by bash, and by shellcheck where it is installed.

    Raises LaunchError: one of them rejects the script.
    """
    _examine(["bash", "-n"], script)
    shellcheck = shutil.which("shellcheck")
    if shellcheck is not None:
        # Remarks below a warning, and SC1112 on quotation marks of other alphabets, concern arguments that are quoted
        # on purpose.
        _examine([shellcheck, "--norc", "--shell=bash", "--severity=warning", "--exclude=SC1112", "-"], script)


def write(script: str, output: Path, executable: bool = True) -> None:
    """Write the script, by default as an executable file.

    Raises LaunchError: it cannot be written.
    """
    if not output.name:
        raise LaunchError(f"--output: {output} is a folder: name a file")
    try:
        write_whole(output, os.fsencode(script), executable=executable)
    except OSError as error:
        raise LaunchError(f"--output: {output} cannot be written: {error.strerror}") from None


def _examine(command: list[str], script: str) -> None:
    try:
        # Not in the user's locale: names and paths in the script may have any letters.
        done = subprocess.run(
            command,
            input=os.fsencode(script),
            capture_output=True,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except OSError as error:
        raise LaunchError(f"the script cannot be checked: {command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        remarks = (done.stdout + done.stderr).decode("utf-8", errors="replace").strip()
        raise LaunchError(f"the script was not written, since {' '.join(command[:2])} does not accept it:\n{remarks}")
