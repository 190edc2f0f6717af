"""What a terminal shows while a run trains, and how it is left."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_line import (
    LONG,
    TINY,
    efficientbench,
    failure,
    losses,
    record,
    steps,
    workers,
)
from support.terminal import Terminal

from efficientbench.training.checkpoints.manifest import complete

CONTROL_C = b"\x03"
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


def screen(shown: bytes) -> list[str]:
    """The lines that stand on the screen in the end: what was erased or written over is gone."""
    lines, row, column = [""], 0, 0
    for part in re.split(r"(\r|\n|\x1b\[[0-9;?]*[A-Za-z])", shown.decode()):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not part.startswith("\x1b"):
            before, after = lines[row][:column].ljust(column), lines[row][column + len(part) :]
            lines[row] = before + part + after
            column += len(part)
    return lines


@dataclass(frozen=True)
class Interrupted:
    """A run that Ctrl-C has ended while its bar was shown."""

    words: tuple[str, ...]
    folder: Path
    shown: bytes
    exit_code: int


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Interrupted:
    output = tmp_path_factory.mktemp("terminal")
    words = ("run", "gqa_1.5B", "--smoke", f"output={output}", f"data.cache={cache}", *TINY, *LONG)
    terminal = Terminal(words)
    terminal.read_until(rb"training .*/20000.*ETA.*loss \d")
    os.write(terminal.main, CONTROL_C)
    exit_code = terminal.end()
    return Interrupted(words, output / "gqa_1.5B_smoke", terminal.shown, exit_code)


def test_the_progress_bar_leaves_no_trace_on_the_terminal(interrupted: Interrupted) -> None:
    assert interrupted.exit_code == 130
    shown = interrupted.shown
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)
    assert b"Traceback" not in shown
    lines = screen(shown)
    assert not any(line.startswith("training ") for line in lines)
    told = [line for line in lines if line.startswith("step ")]
    assert told[0].startswith("step 1/20000 | loss ")
    # The bar has the times; the lines fit the width without them, and the log has everything.
    assert all(len(line) <= 100 and "elapsed" not in line for line in told)
    assert "elapsed 0:00:0" in (interrupted.folder / "log" / "rank_0.log").read_text()
    assert any("(stopped)" in line for line in lines)


@pytest.mark.proof
def test_the_cursor_is_restored_after_a_killed_rank_and_the_same_command_resumes(interrupted: Interrupted) -> None:
    terminal, folder = Terminal(interrupted.words), interrupted.folder
    terminal.read_until(rb"(?s)resumes after step \d+, from .*training .*ETA.*loss \d")
    workers(terminal.process.pid)[0].kill()
    assert terminal.end() == 1
    assert terminal.shown.rindex(SHOW_CURSOR) > terminal.shown.rindex(HIDE_CURSOR)
    assert any(line.startswith("error: rank 0: ended by SIGKILL") for line in screen(terminal.shown))
    assert failure(folder).items() >= {"kind": "lost_rank", "rank": 0}.items()
    assert record(folder)["status"] == "failed"


@pytest.mark.proof
def test_a_run_saves_at_a_hangup_and_continues_where_it_is_ignored(tmp_path: Path, cache: str) -> None:
    def words(name: str) -> tuple[str, ...]:
        output = f"output={tmp_path / name}"
        return ("run", "gqa_1.5B", "--smoke", output, f"data.cache={cache}", *TINY, "training.steps=200")

    def folder(name: str) -> Path:
        return tmp_path / name / "gqa_1.5B_smoke"

    ignoring = Terminal(words("whole"), hangup=signal.SIG_IGN)
    ignoring.read_until(rb"step 1/200 ")
    after = len(losses(folder("whole")))
    assert ignoring.close() == 0
    assert (record(folder("whole"))["status"], after < 200) == ("completed", True)
    heard = Terminal(words("closed"))
    heard.read_until(rb"step 1/200 ")
    assert heard.close() == 129
    assert failure(folder("closed")).items() >= {"kind": "stopped", "rank": None}.items()
    assert failure(folder("closed"))["reason"] == "SIGHUP: the run was asked to stop"
    (saved,) = complete(folder("closed"))
    assert record(folder("closed"))["status"] == "stopped"
    done = efficientbench(*words("closed"), expect=0)
    assert f"resumes after step {int(saved.name.removeprefix('step_'))}, from {saved}" in done.stdout
    told = [[(line["step"], line.get("loss")) for line in steps(folder(name))] for name in ("closed", "whole")]
    assert told[0] == told[1]
    ends = [complete(folder(name))[-1] for name in ("closed", "whole")]
    assert [end.name for end in ends] == ["step_00000200"] * 2
    # Its other files have times and random names as well.
    states = [{name: (end / name).read_bytes() for name in ("__0_0.distcp", "common.pt")} for end in ends]
    assert states[0] == states[1]
