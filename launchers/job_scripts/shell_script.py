"""Shell scripts that start a run elsewhere: how words come into them unharmed, and that no wrong one is written."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from efficientbench.launchers.errors import LaunchError

JOB_SCRIPT = Path(__file__).resolve().with_name("job.sh")


def array(name: str, words: Sequence[str], indent: str = "") -> str:
    """A bash array that holds just these words, whatever is in them."""
    return "\n".join([f"{indent}{name}=(", *(f"{indent}    {shlex.quote(word)}" for word in words), f"{indent})"])


def beginning(folder: Path, exports: dict[str, str] | None = None) -> str:
    """What every script does first: it goes to `folder`, where relative paths mean what they meant when it was written,
    and finds the Python environment."""
    lines = ["set -euo pipefail", f"cd -- {shlex.quote(str(folder))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in (exports or {}).items()]
    job = shlex.quote(str(JOB_SCRIPT))
    return "\n".join([*lines, "# shellcheck source=/dev/null", f"source {job}", "bootstrap"])


def checked(script: str) -> str | None:
    """Let bash and shellcheck read a script; returns a remark where shellcheck is not there to do so.

    Raises LaunchError with their findings.
    """
    _examine(["bash", "-n"], script)
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        return "shellcheck is not installed: the script was read by `bash -n` alone"
    # Below a warning it remarks on quoted words that look as if they were not meant to be quoted; so does SC1112, on
    # quotation marks of other alphabets.
    _examine([shellcheck, "--norc", "--shell=bash", "--severity=warning", "--exclude=SC1112", "-"], script)
    return None


def write(script: str, output: Path) -> None:
    """As an executable file, beside its place and then renamed. Raises LaunchError where it cannot be written."""
    if not output.name:
        raise LaunchError(f"--output: {output} is a folder: name a file")
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        beside.write_bytes(os.fsencode(script))
        beside.chmod(0o755)
        os.replace(beside, output)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise LaunchError(f"--output: {output} cannot be written: {error.strerror}") from None


def _examine(command: list[str], script: str) -> None:
    try:
        # Whatever the user's locale: names and paths in the script may have any letters.
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
        found = (done.stdout + done.stderr).decode("utf-8", errors="replace").strip()
        raise LaunchError(f"the script was not written, since {' '.join(command[:2])} does not accept it:\n{found}")
