"""How runs end before their last step: asked to, or killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.command_line import (
    LONG,
    TIME_LIMIT_S,
    children,
    efficientbench,
    failure,
    interrupted,
    is_alive,
    losses,
    record,
    started,
    steps,
    until,
    wait_for_steps,
)

from efficientbench.training.checkpoints.manifest import complete

Tiny = tuple[str, ...]
TWO = "parallel.tp=2"


def left_behind(temporary: Path) -> set[str]:
    """Return what runs must clear away: their folders in `temporary`, and shared memory."""
    patterns = ("torch_*", "psm_*", "sem.*", "gloo*", "efficientbench_*")
    shared = {str(path) for pattern in patterns for path in Path("/dev/shm").glob(pattern)}
    return {str(path) for path in temporary.glob("efficientbench_*")} | shared


@pytest.mark.proof
@pytest.mark.alone
def test_ctrl_c_ends_after_the_step_and_leaves_nothing_behind(tiny: Tiny, tmp_path: Path, folder: Path) -> None:
    """SIGTERM, and that either resumes: test_parent.py."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = left_behind(temporary)
    with started(*tiny, *LONG, TWO, TMPDIR=str(temporary)) as run:
        wait_for_steps(folder, 8, run)
        family = children(run.pid)
        assert any(temporary.iterdir())
        os.kill(run.pid, signal.SIGINT)
        stdout, stderr = run.communicate(timeout=TIME_LIMIT_S)
    assert run.returncode == 130, stdout + stderr
    assert "Traceback" not in stdout + stderr
    assert stderr.startswith("SIGINT: ")
    assert (failure(folder)["kind"], failure(folder)["rank"]) == ("stopped", None)
    assert failure(folder)["reason"].startswith("SIGINT: ")
    content = record(folder)
    expected = {"status": "stopped", "steps_measured": len(losses(folder)) - 1, "validation_loss": None}
    assert content.items() >= expected.items()
    assert content["unavailable"]["validation_loss"] == "the run ended before a validation"
    assert "gqa_1.5B (smoke) (speed only) (stopped)" in stdout
    assert not any(process.is_running() for process in family)
    assert left_behind(temporary) <= before


def test_ctrl_c_while_ranks_start_ends_the_run(tiny: Tiny, tmp_path: Path) -> None:
    with started(*tiny, *LONG) as run:
        until(lambda: children(run.pid), "a rank")
        os.kill(run.pid, signal.SIGINT)
        stdout, stderr = run.communicate(timeout=TIME_LIMIT_S)
    assert run.returncode == 130
    assert "Traceback" not in stdout + stderr
    assert not (tmp_path / "gqa_1.5B_smoke" / "record.json").exists()


@pytest.mark.proof
def test_a_stopped_run_is_set_aside_by_the_next(tiny: Tiny, folder: Path) -> None:
    assert interrupted(folder, (*tiny, *LONG), signal.SIGTERM, 1) == 143
    # Stopped in its first steps, it has measured nothing, and says so.
    stopped = record(folder)
    efficientbench(*tiny, expect=0)
    assert not (folder / "failure.json").exists()
    assert (record(folder)["status"], len(losses(folder))) == ("completed", 6)
    (aside,) = (folder / "previous").iterdir()
    assert (stopped["status"], record(aside)) == ("stopped", stopped)
    names = ["checkpoint", "config.json", "log", "record.json", "steps.jsonl", "tensorboard", "tokenizer"]
    assert sorted(path.name for path in aside.iterdir()) == names


@pytest.mark.proof
def test_ranks_end_with_their_launcher_and_the_same_command_resumes(tiny: Tiny, folder: Path) -> None:
    words = (*tiny, "training.steps=100", "checkpoint.interval=10")
    with started(*words) as run:
        wait_for_steps(folder, 12, run)
        family = children(run.pid)
        assert family
        os.kill(run.pid, signal.SIGKILL)
        until(lambda: not any(is_alive(process.pid) for process in family), "the ranks' end", limit_s=30)
    (*_, last) = complete(folder)
    # The folder is free again, whatever the dead process had written into its lock.
    done = efficientbench(*words, expect=0)
    assert f"resumes after step {int(last.name.removeprefix('step_'))}, from {last}" in done.stdout
    assert [line["step"] for line in steps(folder) if line["kind"] == "step"] == list(range(1, 101))
