"""A task and a reward of an installed package, in all that a chat model goes through."""

from __future__ import annotations

import csv
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import outside
from support.chat_tokenizers import of_bytes
from support.command_line import ROOT, TIME_LIMIT_S, efficientbench, environment, record
from support.conversation_pairs import VOCABULARY
from support.outside_task import WORDS


@pytest.mark.proof
def test_a_packages_task_and_reward_work_in_training_evaluation_and_report(
    tiny: tuple[str, ...], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.install(tmp_path, "efficientbench.tasks", "counting", "support.outside_task:Counting")
    outside.install(tmp_path, "efficientbench.rewards", "ascii", "support.outside_rewards:ascii_share")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(tmp_path)]))
    of_bytes(tmp_path / "bpe")
    (tmp_path / "mixture.yaml").write_text("tasks: [{task: counting}]")
    words = ("--tokenizer", str(tmp_path / "bpe"), "--output", str(tmp_path / "chat"))
    make = (sys.executable, "-m", "data_tools", "chat", str(tmp_path / "mixture.yaml"), *words)
    made = subprocess.run(make, env=environment(), capture_output=True, text=True, check=True, timeout=TIME_LIMIT_S)
    assert "counting" in made.stdout
    code = [
        hashlib.sha256((ROOT / "tests" / "support" / f"outside_{name}.py").read_bytes()).hexdigest()
        for name in ("task", "rewards")
    ]
    asked = ("training.objective=rl", "training.steps=4", "training.seq_len=96", "data.split=[3,2,0]")
    named = (f"data.path={tmp_path / 'chat'}", "rl.task=counting", "rl.reward=ascii", "rl.samples=2")
    sizes = (f"model.vocab_size={VOCABULARY}", "rl.max_new_tokens=8")
    done = efficientbench(*tiny, *asked, *named, *sizes, expect=0)
    assert f"{len(WORDS)} questions of counting, 2 in a step with 2 answers each" in done.stdout
    found = record(folder)["reinforcement"]
    assert 0 < found["reward_first"] < 1
    assert found["files_sha256"] == code
    efficientbench("evaluate", str(folder), "--tasks", "counting", "--max-new-tokens", "8", expect=0)
    efficientbench("report", str(folder.parent), expect=0)
    with (folder.parent / "evaluations.csv").open() as file:
        figures = [(row["task"], row["items"]) for row in csv.DictReader(file)]
    assert figures == [("counting", str(len(WORDS)))]
    assert "counting" in (folder.parent / "report.md").read_text()
