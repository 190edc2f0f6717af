"""From text to a chat model by one command, on real rows: killed while it trains, and called again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.command_line import ROOT, TIME_LIMIT_S, TINY, losses, record, wait_for_steps
from support.places import job_environment

from efficientbench.stages.steps import BOOT

pytestmark = pytest.mark.proof

BASE_STEPS = 150
KEYS = (
    *(key for key in TINY if not key.startswith(("training.seq_len", "training.steps"))),
    *("training.seq_len=512", "training.steps=12", f"base:training.steps={BASE_STEPS}"),
)


def test_a_kill_costs_nothing_and_a_report_card_is_the_end(tmp_path: Path, shared_data: Path) -> None:
    work, items = tmp_path / "work", tmp_path / "items"
    text = tmp_path / "text.txt"
    text.write_text((shared_data / "fineweb_edu" / "fineweb_sample.txt").read_text(encoding="utf-8")[:100_000])
    rows = shared_data / "gsm8k" / "train.jsonl"
    for stage, start in (("mid", 0), ("sft", 200)):
        mixture = f"tasks: [{{task: gsm8k, path: {rows}, start: {start}, stop: {start + 200}}}]\n"
        (tmp_path / f"{stage}.yaml").write_text(mixture)
    (items / "mmlu" / "test").mkdir(parents=True)
    shutil.copy(shared_data / "mmlu" / "test" / "abstract_algebra_test.csv", items / "mmlu" / "test")
    # The check of the machine has its own tests.
    work.mkdir()
    (work / f"checked_cpu_{os.uname().nodename}.txt").write_text(BOOT.read_text())
    words = (
        "--device",
        "cpu",
        "--work",
        work,
        "--data",
        text,
        "--task-data",
        items,
        "--vocab-size",
        1024,
        "--limit",
        4,
    )
    mixtures = ("--mid", tmp_path / "mid.yaml", "--sft", tmp_path / "sft.yaml")
    command = ["bash", ROOT / "launchers" / "speedrun.sh", *words, *mixtures, *KEYS]
    started = subprocess.Popen(
        list(map(str, command)), env=job_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    base, mid, sft = (work / "runs" / f"{stage}_d4" / "seed_1234" for stage in ("base", "mid", "sft"))
    wait_for_steps(base, 20, started)
    os.kill(started.pid, signal.SIGKILL)
    # The run itself is asked to end: its output ends with it.
    started.communicate(timeout=TIME_LIMIT_S)
    before = len(losses(base))
    assert 20 <= before < BASE_STEPS
    done = subprocess.run(
        list(map(str, command)),
        env=job_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for step in ("check", "tokenizer", "tokens of the text", "conversations of mid", "conversations of sft"):
        assert f", {step}: complete\n" in done.stdout
    assert "goes on after step " in done.stdout
    assert (len(losses(base)), len(losses(mid)), len(losses(sft))) == (BASE_STEPS, 12, 12)
    for folder, earlier in ((mid, base), (sft, mid)):
        assert record(folder)["config"]["init"]["run"] == str(earlier)
        assert (folder / "evaluation" / "mmlu.json").is_file()
    card = (work / "runs" / "report_card.md").read_text(encoding="utf-8")
    assert [line.split("|")[2].strip() for line in card.splitlines() if line.startswith("| sft_d4")] == [
        *("base", "mid", "SFT", "RL", "all"),
    ]
    assert f"efficientbench chat {sft}" in done.stdout
