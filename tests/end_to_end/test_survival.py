"""What a run loses when its ranks are killed or its disk is full: nothing that was saved, and no bit of the result."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from support.checkpoints import read_weights
from support.command_line import (
    TIME_LIMIT_S,
    TINY,
    efficientbench,
    failure,
    record,
    started,
    steps,
    until,
    workers,
)

from efficientbench.training.checkpoints.manifest import PARTIAL, complete, find_good, verify

Tiny = tuple[str, ...]
RUN = "gqa_1.5B_smoke"
KILLS = 10
STEPS = 120
LENGTH = ("parallel.dp=2", f"training.steps={STEPS}")


def kill_a_rank(words: tuple[str, ...], folder: Path, chance: random.Random, when: str) -> bool:
    """Start the run and kill one of its ranks; returns whether that was in the middle of a checkpoint."""
    with started(*words) as run:
        begun = len(steps(folder))
        if when == "starting":
            until(lambda: run.poll() is not None or len(psutil.Process(run.pid).children()) == 2, "two ranks")
            time.sleep(chance.uniform(0, 5))
        else:
            until(lambda: run.poll() is not None or len(steps(folder)) != begun, "a further step")
            time.sleep(chance.uniform(0, 1))
        if when == "saving":
            parts = folder / "checkpoint"
            until(lambda: run.poll() is not None or any(parts.glob(f"{PARTIAL}*")), "a checkpoint being written")
        assert run.poll() is None, run.communicate()
        chance.choice(workers(run.pid)).kill()
        _, told = run.communicate(timeout=TIME_LIMIT_S)
    assert run.returncode == 1, told
    assert failure(folder)["kind"] == "lost_rank"
    return any((folder / "checkpoint").glob(f"{PARTIAL}*"))


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_run_killed_ten_times_ends_with_the_bits_of_an_uninterrupted_one(
    tiny: Tiny, tmp_path: Path, cache: str
) -> None:
    whole = ("run", "gqa_1.5B", "--smoke", f"output={tmp_path / 'whole'}", f"data.cache={cache}", *TINY, *LENGTH)
    efficientbench(*whole, "checkpoint.interval=0", expect=0)
    folder, chance = tmp_path / RUN, random.Random(6)
    words = (*tiny, *LENGTH, "checkpoint.interval=3")
    saved, halved = -1, 0
    for kill in range(KILLS):
        halved += kill_a_rank(words, folder, chance, ("training", "saving", "starting", "saving")[kill % 4])
        good = find_good(folder)[0]
        step = verify(good).step if good is not None else 0
        assert step >= saved, f"the checkpoint of step {saved} is lost"
        saved = step
    assert halved >= 2, "hardly any kill was in the middle of a checkpoint"
    assert 0 < saved < STEPS
    efficientbench(*words, expect=0)
    undisturbed = tmp_path / "whole" / RUN
    assert by_step(folder) == by_step(undisturbed)
    first, second = record(folder), record(undisturbed)
    assert (first["status"], first["validation_loss"]) == ("completed", second["validation_loss"])
    weights, expected = (read_weights(complete(each)[-1]) for each in (folder, undisturbed))
    assert list(weights) == list(expected)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def by_step(folder: Path) -> list[tuple[int, float]]:
    """Each step's loss, in the order of the lines: one for each step, whatever attempts there were."""
    found = [(line["step"], line["loss"]) for line in steps(folder) if line["kind"] == "step"]
    assert [step for step, _ in found] == list(range(1, STEPS + 1))
    return found


@pytest.mark.proof
def test_a_full_disk_loses_no_earlier_checkpoint(tiny: Tiny, small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    disk = small_disk(100_000)
    folder = disk / RUN
    words = (*tiny, "parallel.dp=2", f"output={disk}", "training.steps=12", "checkpoint.interval=4")
    efficientbench(*words, "checkpoint.keep=9", expect=0)
    first, _, last = (sum(file.stat().st_size for file in each.iterdir()) for each in complete(folder))
    used_bytes = shutil.disk_usage(disk).used
    shutil.rmtree(folder)
    # Room for the first and half of the second.
    small_disk((used_bytes - last - first // 2) // 1024)
    done = efficientbench(*words, expect=2)
    assert done.stderr.startswith(f"error: no space left in {folder}"), done.stderr
    good = find_good(folder)[0]
    assert good is not None
    assert verify(good).step == 4
    assert f"last good checkpoint: {good}" in done.stderr
    assert not list((folder / "checkpoint").glob("step_00000008*"))
    small_disk(100_000)
    again = efficientbench(*words, expect=0)
    assert "resumes after step 4" in again.stdout
    assert verify(complete(folder)[-1]).step == 12
