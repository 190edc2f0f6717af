"""What is tried on an emulated machine: commands of a clone there, and runs that are killed, resumed and compared."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from support.command_line import command, environment, losses, record
from support.emulated import Machine, said_by_qemu

from efficientbench.data_tools.tokenizing.embedded import embedded_documents

CLONE, OUTPUT, CACHE, TEXT = "/srv/efficientbench", "/srv/output", "/srv/cache", "/srv/text.jsonl"
RUN = "gqa_1.5B_smoke"
SAME_LOSS = 1e-4
"""Relative: how far losses of two processors may lie apart, whose sums have other orders."""


class StageError(Exception):
    """A stage did not end as it should; the message is its cell."""


@dataclass(frozen=True)
class Trial:
    """The emulated machine, this machine's folder for logs and its own runs, and how long a command may take."""

    machine: Machine
    folder: Path
    suite: str
    mirror: str
    limit_s: float

    @property
    def python(self) -> str:
        """The release of the machine's Python, like 3.11."""
        return max(each.name for each in self.machine.path("/usr/lib").glob("python3.*")).removeprefix("python")

    def inside(self, name: str, *words: str) -> str:
        """Run a command of the clone in the machine and return what it printed.

        Raises StageError: it failed or took too long; with qemu's own line where there is one.
        """
        log = self.folder / f"{name}.log"
        try:
            status = self.machine.call(words, log, CLONE, self.limit_s)
        except subprocess.TimeoutExpired as error:
            raise StageError(f"stopped after {self.limit_s / 60:.0f} min") from error
        text = log.read_text(encoding="utf-8", errors="replace")
        if status != 0:
            raise StageError(f"exit code {status}{said_by_qemu(text)}")
        return text

    def output(self, name: str) -> Path:
        """Return the folder of the run that the machine wrote under this name."""
        return self.machine.path(f"{OUTPUT}/{name}") / RUN

    def native(self, name: str, *more: str) -> tuple[Path, list[str]]:
        """Return the folder of a run of this processor, and its command."""
        output, cache = (self.folder / "native" / each for each in (name, "cache"))
        keys = (f"output={output}", f"data.cache={cache}", f"data.path={self.text()}")
        return output / RUN, command("run", "gqa_1.5B", "--smoke", *keys, *more)

    def given(self, name: str) -> tuple[str, ...]:
        """Return the keys of the machine's run of this name."""
        self.text()
        return f"output={OUTPUT}/{name}", f"data.cache={CACHE}", f"data.path={TEXT}"

    def text(self) -> Path:
        """Return the text of all runs, which lies in the machine; a distribution's patches change its own sample."""
        path = self.machine.path(TEXT)
        if not path.exists():
            lines = (json.dumps({"text": document}) + "\n" for document in embedded_documents())
            path.write_text("".join(lines), encoding="utf-8")
        return path


def whole_here(trial: Trial, name: str, *keys: str) -> Path:
    """Return the folder of this processor's run that nobody disturbed, trained where it has not been."""
    folder, words = trial.native(name, *keys)
    if not (folder / "record.json").exists():
        subprocess.run(words, env=environment(), stdout=subprocess.DEVNULL, check=True)
    return folder


def kill_after(steps: int, folder: Path, words: list[str], log: Path, variables: dict[str, str] | None) -> None:
    """Start a run and end all its processes by SIGKILL after `steps` steps.

    Raises StageError: it ended before.
    """
    with log.open("w", encoding="utf-8") as file:
        run = subprocess.Popen(words, env=variables, stdout=file, stderr=file, start_new_session=True)
        while run.poll() is None and len(losses(folder)) < steps:
            time.sleep(0.05)
        if run.poll() is not None:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise StageError(f"ended before it was killed, exit code {run.returncode}{said_by_qemu(text)}")
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def resumed(text: str, folder: Path, whole: Path | None) -> str:
    """Return after which step a run went on, and how its loss compares with that of the run in `whole`.

    Raises StageError: it started anew, or the losses differ.
    """
    if (went_on := re.search(r"resumes after step (\d+)", text)) is None:
        raise StageError("started anew")
    cell = f"resumes after step {went_on[1]}, completed"
    if whole is None:
        return cell
    mine, other = record(folder)["validation_loss"], record(whole)["validation_loss"]
    if abs(mine / other - 1) > SAME_LOSS:
        raise StageError(f"{cell}; loss {mine}, not {other}")
    return f"{cell}; validation loss {mine:.6f}, that of {platform.machine()} alone {other:.6f}"
