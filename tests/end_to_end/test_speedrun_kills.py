"""A speedrun that is killed in each of its stages, in another way each time, and called again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from support.command_line import TIME_LIMIT_S, children, losses, record, wait_for_steps, words_of
from support.speedruns import card_stages, prepared, run_folder, start

pytestmark = pytest.mark.proof

STEPS, RL_STEPS, INTERVAL = 200, 60, 20
STAGES = ("base", "mid", "sft", "rl")


def ended(speedrun: subprocess.Popen[str]) -> str:
    """Return what a speedrun printed until its end."""
    return speedrun.communicate(timeout=TIME_LIMIT_S)[0]


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def test_a_kill_in_any_stage_costs_no_step_that_was_saved(tmp_path: Path, shared_data: Path) -> None:
    rows = shared_data / "gsm8k"
    of_rl = (f"training.steps={RL_STEPS}", "training.optimizer=muon", "rl.samples=2", "rl.max_new_tokens=8")
    asked = (f"rl.questions={rows / 'train.jsonl'}", f"rl.test_questions={rows / 'test.jsonl'}")
    keys = (f"training.steps={STEPS}", f"checkpoint.interval={INTERVAL}", *(f"rl:{key}" for key in (*of_rl, *asked)))
    words = (*prepared(tmp_path, shared_data), "--rl", *keys)
    base, mid, sft, rl = folders = [run_folder(tmp_path, stage) for stage in STAGES]

    # The speedrun itself: its run is asked to end, and saves.
    speedrun = start(words)
    wait_for_steps(base, INTERVAL + 5, speedrun)
    os.kill(speedrun.pid, signal.SIGKILL)
    ended(speedrun)

    # Everything at once, as when the power fails.
    speedrun = start(words)
    wait_for_steps(mid, INTERVAL + 5, speedrun)
    # The ranks first, so that none is asked to save.
    for process in reversed([psutil.Process(speedrun.pid), *children(speedrun.pid)]):
        kill(process)
    ended(speedrun)

    # A rank: the run fails, and the speedrun ends by itself.
    speedrun = start(words)
    wait_for_steps(sft, INTERVAL + 5, speedrun)
    kill(next(each for each in children(speedrun.pid) if "efficientbench.worker.rank" in words_of(each)))
    assert "error: sft_d4: failed; what is complete stays, and the same command resumes the speedrun" in ended(speedrun)
    assert speedrun.returncode

    # A stop, as a scheduler asks for it.
    speedrun = start(words)
    wait_for_steps(rl, 5, speedrun)
    os.kill(speedrun.pid, signal.SIGTERM)
    assert "stopped: the same command resumes the speedrun" in ended(speedrun)
    assert speedrun.returncode == 143

    speedrun = start(words)
    shown = ended(speedrun)
    assert speedrun.returncode == 0, shown
    # Every step is there once, and each run has gone on once.
    assert [len(losses(folder)) for folder in folders] == [STEPS, STEPS, STEPS, RL_STEPS]
    resumed = [record(folder)["resumed_after_steps"] for folder in folders]
    assert [len(steps) for steps in resumed] == [1, 1, 1, 1]
    for [step] in resumed[1:3]:
        assert step >= INTERVAL
        assert step % INTERVAL == 0
    for folder, before in zip(folders[1:], folders, strict=False):
        assert record(folder)["config"]["init"]["run"] == str(before)
    # Rewards, by Muon, from the weights that AdamW left.
    learned = record(rl)
    assert learned["reinforcement"]["questions"] >= RL_STEPS
    assert {group["role"]: group["optimizer"] for group in learned["parameter_groups"]}["matrices"] == "muon"
    assert learned["config"]["parallel"]["distributed_optimizer"] is False
    assert card_stages(tmp_path, "rl_d4") == ["base", "mid", "SFT", "RL", "all"]
