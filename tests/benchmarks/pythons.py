"""Which Pythons run everything: the README's commands and a killed run, each in a fresh clone set up by that Python.

    python tests/benchmarks/pythons.py --folder FOLDER INTERPRETER... [--without-tests] [--write]

For each interpreter, like /usr/bin/python3.11, it clones the last commit to FOLDER/VERSION. There it calls the first
command of the README, calls it again with a checkpoint every ten steps, kills that with SIGKILL after 30 steps and
repeats it; then it calls the second command, which takes longest and can be left out. A `.venv` that is there already
is kept. An interpreter of a virtual environment, with another torch for instance, runs the clone with the packages that
it has; only the clone is installed there. What is printed lies in FOLDER/VERSION/*.log. With `--write`, each row is
written for the docs as soon as its Python is through; rows of others stay, and those that have not run have a row that
says so.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.command_line import record, steps
from support.measured import git, options, write_row, written_rows
from support.repository import ROOT

SMOKE = ("bash", "experiments/attention_variants/run_gqa_1.5B.sh", "--smoke")
RUN = "gqa_1.5B_smoke"
KILL_AFTER_STEPS = 30
EXPECTED = ("3.10.13", "3.11.2", "3.11.7", "3.12.1", "3.13.0")
"""The oldest and the newest Python, that of Debian 12, and two between."""
TORCH = "2.13.0"
"""As constraints.txt pins it."""
NEVER = "never run"
CONDITIONS = "each in a fresh clone"


def main() -> None:
    """Print a row for each interpreter; with `--write`, write them for the docs."""
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the clones and their environments lie")
    parser.add_argument("--without-tests", action="store_true", help="leave out the second command")
    parser.add_argument("interpreters", nargs="+", metavar="INTERPRETER")
    arguments = parser.parse_args()
    if arguments.write:
        there = [versions(row) for row in written_rows(__file__)]
        for row in map(never_ran, EXPECTED):
            if versions(row) not in there:
                write_row(__file__, row, versions, CONDITIONS)
    for interpreter in arguments.interpreters:
        row = tried(interpreter, arguments.folder.resolve(), not arguments.without_tests)
        print(row, flush=True)
        if arguments.write:
            write_row(__file__, row, versions, CONDITIONS)


def versions(row: dict[str, str]) -> tuple[list[int], str]:
    """Return what orders the rows: the versions of Python and of torch, whatever its build."""
    return [int(part) for part in row["Python"].split(".")], row["torch"].partition("+")[0]


def never_ran(version: str) -> dict[str, str]:
    """Return the row of a Python that has not run."""
    commands = dict.fromkeys(("first command", "killed, repeated", "default tests"), NEVER)
    return {"Python": version, "torch": TORCH, **commands, "commit": "–"}


def tried(interpreter: str, folder: Path, with_tests: bool) -> dict[str, str]:
    """Return the cells of one Python's row by their titles."""
    version = printed(interpreter, "import platform; print(platform.python_version())")
    place = folder / version
    clone = place / "efficientbench"
    environment = prepare(interpreter, clone)
    smoke = call([*SMOKE, f"output={place / 'whole'}"], clone, environment, place / "smoke.log")
    resumed = killed_and_resumed(place, clone, environment)
    python = interpreter if environment_of(interpreter) else str(clone / ".venv/bin/python")
    return {
        **never_ran(version),
        "torch": printed(python, "import torch; print(torch.__version__)"),
        "first command": "completed" if smoke == 0 else f"exit code {smoke}",
        "killed, repeated": resumed,
        "default tests": tested(clone, environment, place / "tests.log") if with_tests else NEVER,
        "commit": git("-C", str(clone), "describe", "--always"),
    }


def tested(clone: Path, environment: dict[str, str], log: Path) -> str:
    """Call the second command, and return its counts."""
    code = call(["bash", "tests/run.sh"], clone, environment, log)
    told = log.read_text(encoding="utf-8")
    if code and "FAILED" not in told:
        return f"exit code {code}"
    kinds = {"passed": ("passed",), "skipped": ("skipped",), "failed": ("failed", "error", "errors")}
    return ", ".join(f"{counted(told, *names)} {kind}" for kind, names in kinds.items())


def prepare(interpreter: str, clone: Path) -> dict[str, str]:
    """Clone the last commit and return an environment where `python3` is this interpreter and no other is active."""
    for name in ("whole", "killed"):
        shutil.rmtree(clone.parent / name, ignore_errors=True)
    if not clone.exists():
        git("clone", "--quiet", str(ROOT), str(clone))
    # Without it, tests that read real data would be skipped.
    data = clone.parent / "shared"
    if (ROOT.parent / "shared").is_dir() and not data.exists():
        data.symlink_to((ROOT.parent / "shared").resolve())
    for words in (["fetch", "--quiet", str(ROOT), "HEAD"], ["checkout", "--quiet", "--detach", "FETCH_HEAD"]):
        subprocess.run(["git", *words], cwd=clone, check=True)
    subprocess.run(["git", "clean", "-ffdxq", "--exclude=.venv"], cwd=clone, check=True)
    programs = clone.parent / "bin"
    programs.mkdir(exist_ok=True)
    # Not a link: a virtual environment finds its library through the name that it was made by.
    (programs / "python3").write_text(f'#!/bin/sh\nexec {interpreter} "$@"\n', encoding="utf-8")
    (programs / "python3").chmod(0o755)
    own = str(Path(sys.executable).parent)
    path = [str(programs), *(each for each in os.environ["PATH"].split(os.pathsep) if each != own)]
    kept = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")}
    if prefix := environment_of(interpreter):
        flags = ["--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([interpreter, "-m", "pip", "install", *flags, "-e", str(clone)], check=True)
        kept, path = kept | {"VIRTUAL_ENV": prefix}, [f"{prefix}/bin", *path]
    return kept | {"PATH": os.pathsep.join(path)}


def environment_of(interpreter: str) -> str | None:
    """Return the folder of the virtual environment whose interpreter this is, None if it is of none."""
    return printed(interpreter, "import sys; print(sys.prefix if sys.prefix != sys.base_prefix else '')") or None


def killed_and_resumed(place: Path, clone: Path, environment: dict[str, str]) -> str:
    """Kill a run, repeat its command, and return how it ended beside the run that nobody killed."""
    words = [*SMOKE, f"output={place / 'killed'}", "checkpoint.interval=10"]
    folder = place / "killed" / RUN
    with (place / "killed.log").open("w") as log:
        run = subprocess.Popen(words, cwd=clone, env=environment, stdout=log, stderr=log, start_new_session=True)
        while run.poll() is None and len([line for line in steps(folder) if line["kind"] == "step"]) < KILL_AFTER_STEPS:
            time.sleep(0.05)
        if run.poll() is not None:
            return f"ended before it was killed, exit code {run.returncode}"
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    if status := call(words, clone, environment, place / "resumed.log"):
        return f"exit code {status}"
    went_on = re.search(r"resumes after step (\d+)", (place / "resumed.log").read_text(encoding="utf-8"))
    if went_on is None:
        return "started anew"
    again, whole = record(folder)["validation_loss"], record(place / "whole" / RUN)["validation_loss"]
    return f"resumed after step {went_on[1]}, " + ("the same loss" if again == whole else f"{again}, not {whole}")


def call(words: list[str], clone: Path, environment: dict[str, str], log: Path) -> int:
    """Run a command in the clone and return its exit code; `log` takes what it prints."""
    with log.open("w") as file:
        return subprocess.run(
            words, cwd=clone, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False
        ).returncode


def printed(python: str, code: str) -> str:
    """Return what an interpreter prints."""
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def counted(log: str, *kinds: str) -> str:
    """Return the sum of the tests that pytest's last lines call `kinds`, of all its calls."""
    last = re.findall(r"^=+ (.+ in [\d.]+s.*) =+$", log, re.MULTILINE)
    found = [(int(number), kind) for line in last for number, kind in re.findall(r"(\d+) (\w+)", line)]
    return f"{sum(number for number, kind in found if kind in kinds):,}"


if __name__ == "__main__":
    main()
