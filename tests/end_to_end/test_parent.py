"""What the parent process does for each kind of run: refusals, faults, stops, resume, repeats, on two ranks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.campaigns import kill
from support.command_line import (
    LONG,
    TIME_LIMIT_S,
    children,
    efficientbench,
    failure,
    losses,
    record,
    started,
    steps,
    stop_in_a_step,
    until,
    wait_for_steps,
    workers,
)

from efficientbench.training.checkpoints.manifest import complete, find_good, read_manifest

pytestmark = pytest.mark.proof

Tiny = tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A run of two ranks."""

    words: tuple[str, ...]
    few_steps: tuple[str, ...]
    name: str
    """The name of the run's folder."""
    seed: int
    hang_limit_s: int
    """More than the ranks need for any of their steps and for what they import before the first."""
    full_kilobytes: int
    """The size of a disk on which no first checkpoint has room."""


FINE_TUNING = pytest.param(
    "fine-tuning", marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
)


@pytest.fixture(params=["pretraining", FINE_TUNING])
def kind(request: pytest.FixtureRequest, tiny: Tiny, tmp_path: Path, cache: str) -> Kind:
    if request.param == "pretraining":
        few = ("training.steps=6", "checkpoint.interval=2")
        return Kind((*tiny, "parallel.tp=2"), few, "gqa_1.5B_smoke", 1234, 8, 120)
    places = (f"output={tmp_path}", f"cache={cache}", "device=cpu", "cpu_ranks=2", "zero.stage=0")
    few = ("training.steps=4", "checkpoint.interval=2")
    shorter = ("training.validate_every_steps=0", "data.validation_examples=8")
    return Kind(("finetune", "lora_tiny", *places, *shorter), few, "lora_tiny", 42, 60, 1200)


def test_killed_attempts_are_named_and_counted_and_stopped_ones_resume(kind: Kind, tmp_path: Path) -> None:
    """Four attempts: a rank is killed, all processes are, and two stops, of which the second resumes the first."""
    folder = tmp_path / kind.name
    lose_a_rank(kind, folder)
    first_s = steps(folder)[-1]["elapsed_s"]
    with started(*kind.words, *LONG) as run:
        wait_for_new_steps(folder, first_s, run)
        assert kill(run, every=True, chance=random.Random(0))
        run.communicate(timeout=TIME_LIMIT_S)
    assert find_good(folder)[0] is None
    second_s = steps(folder)[-1]["elapsed_s"]
    assert second_s > first_s > 0
    with started(*kind.words, *LONG) as run:
        wait_for_new_steps(folder, second_s, run)
        stop(run, folder, signal.SIGTERM, 143)
    lost, content = steps(folder)[0], record(folder)
    assert lost == {"kind": "lost", "step": 0, "lost_s": second_s, "elapsed_s": second_s}
    assert content["restarts_s"] == pytest.approx(second_s)
    assert content["wall_s"] > content["duration_s"]
    assert content["checkpoint_bound_s"] >= 600
    assert "a kill loses at most 600 s of training" in (folder / "log" / "rank_0.log").read_text()
    begun, (saved, _) = len(losses(folder)), find_good(folder)
    with started(*kind.words, *LONG) as run:
        wait_for_steps(folder, begun + 2, run)
        stdout = stop(run, folder, signal.SIGINT, 130)
    assert f"resumes after step {begun}, from {saved}\n" in stdout
    assert record(folder)["resumed_after_steps"] == [begun]
    assert [line["step"] for line in steps(folder) if line["kind"] == "step"] == list(range(1, len(losses(folder)) + 1))


def lose_a_rank(kind: Kind, folder: Path) -> None:
    """Start a run, call it once more in vain, and kill one of its ranks."""
    with started(*kind.words, *LONG) as run:
        wait_for_steps(folder, 2, run)
        refused = efficientbench(*kind.words, *LONG, expect=2)
        assert f"error: output: {folder} is in use by another run (process {run.pid})" in refused.stderr
        assert "output=FOLDER" in refused.stderr
        assert run.poll() is None
        assert not (folder / "previous").exists()
        family = children(run.pid)
        workers(run.pid)[1].kill()
        stdout, stderr = run.communicate(timeout=TIME_LIMIT_S)
    assert run.returncode == 1
    assert stderr.startswith("error: rank 1: ended by SIGKILL (the kernel does so when memory runs out)")
    assert "Traceback" not in stdout + stderr
    assert failure(folder).items() >= {"kind": "lost_rank", "rank": 1}.items()
    failed = record(folder)
    assert (failed["status"], failed["tokens_per_s"]) == ("failed", None)
    assert failed["unavailable"]["tokens_per_s"].startswith("the run failed (lost rank): rank 1: ended by SIGKILL")
    assert "(failed)" in stdout
    assert not any(process.is_running() for process in family)
    assert find_good(folder)[0] is None


def wait_for_new_steps(folder: Path, elapsed_s: float, run: subprocess.Popen[str]) -> None:
    """Wait until a run has set aside what its folder had, which ended after `elapsed_s`, and has trained two steps."""

    def is_set_aside() -> bool:
        return elapsed_s not in [line["elapsed_s"] for line in steps(folder) if line["kind"] != "lost"]

    until(is_set_aside, "a folder set aside")
    wait_for_steps(folder, 2, run)


def stop(run: subprocess.Popen[str], folder: Path, number: signal.Signals, exit_code: int) -> str:
    """Ask a run to stop, which saves; return what it printed."""
    os.kill(run.pid, number)
    stdout, stderr = run.communicate(timeout=TIME_LIMIT_S)
    assert run.returncode == exit_code, stdout + stderr
    assert "Traceback" not in stdout + stderr
    assert stderr.startswith(f"{number.name}: the ranks have 60 s to save and end")
    assert failure(folder).items() >= {"kind": "stopped", "rank": None}.items()
    assert failure(folder)["reason"].startswith(f"{number.name}: ")
    assert (record(folder)["status"], "(stopped)" in stdout) == ("stopped", True)
    assert not {"adapter", "model"} & {path.name for path in folder.iterdir()}
    saved, _ = find_good(folder)
    assert saved is not None
    assert read_manifest(saved).step == len(losses(folder))
    assert f"last good checkpoint: {saved}; run the same command again to resume" in stderr
    return stdout


def test_a_hung_rank_is_named(kind: Kind, tmp_path: Path) -> None:
    folder = tmp_path / kind.name
    with started(*kind.words, *LONG, f"faults.hang_limit_s={kind.hang_limit_s}") as run:
        wait_for_steps(folder, 2, run)
        family = children(run.pid)
        stop_in_a_step(workers(run.pid)[1])
        stdout, stderr = run.communicate(timeout=TIME_LIMIT_S)
    assert run.returncode == 1
    assert "Traceback" not in stdout + stderr
    wanted = f"error: rank 1: hung: no rank made progress for {kind.hang_limit_s} s; rank 1 did not arrive (in step "
    assert stderr.startswith(wanted)
    assert "its process is stopped (SIGSTOP)" in stderr
    assert not any(process.is_running() for process in family)
    found = failure(folder)
    assert (found["kind"], found["rank"], found["step"] >= 2) == ("hung", 1, True)
    assert record(folder)["status"] == "failed"
    # The rank that waited has written down where it was.
    assert "most recent call first" in (folder / "log" / "rank_0.log").read_text()


def test_a_disk_that_fills_up_is_named(kind: Kind, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(kind.full_kilobytes)
    done = efficientbench(*kind.words, *kind.few_steps, f"output={disk}", expect=2)
    assert done.stderr.startswith(f"error: no space left in {disk / kind.name}"), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not complete(disk / kind.name)


# For pretraining: test_repeats.py.
@pytest.mark.parametrize("kind", [FINE_TUNING], indirect=True)
def test_a_complete_repeat_is_skipped(kind: Kind, tmp_path: Path) -> None:
    first, second = (tmp_path / kind.name / f"seed_{kind.seed + index}" for index in (0, 1))
    words = (*kind.words, "cpu_ranks=1", *kind.few_steps)
    efficientbench(*words, "--repeat", "1", expect=0, stderr="")
    written = record(first)
    done = efficientbench(*words, "--repeat", "2", expect=0, stderr="")
    assert f"repeat 1 of 2, seed {kind.seed}: complete, kept ({first / 'record.json'})" in done.stdout
    assert f"repeat 2 of 2, seed {kind.seed + 1}: trains" in done.stdout
    assert f"2 runs (seeds {kind.seed}, {kind.seed + 1})" in done.stdout
    assert record(first) == written
    assert (record(second)["seed"], record(second)["status"]) == (kind.seed + 1, "completed")
    assert losses(first) != losses(second)
