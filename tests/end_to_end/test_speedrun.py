"""From text to a chat model by one command, on real rows: killed while it trains, and called again."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from support.command_line import ROOT, TIME_LIMIT_S, efficientbench, losses, record, wait_for_steps
from support.speedruns import card_stages, prepared, run_folder, start

pytestmark = pytest.mark.proof

BASE_STEPS = 150
KEYS = ("training.steps=12", f"base:training.steps={BASE_STEPS}")
SIMULATED = ROOT / "tests" / "replicas" / "simulated_npu"


def test_a_killed_speedrun_resumes_and_ends_with_a_report_card(tmp_path: Path, shared_data: Path) -> None:
    words = (*prepared(tmp_path, shared_data), *KEYS)
    items = tmp_path / "items" / "mmlu" / "test"
    items.mkdir(parents=True)
    shutil.copy(shared_data / "mmlu" / "test" / "abstract_algebra_test.csv", items)
    base, mid, sft = (run_folder(tmp_path, stage) for stage in ("base", "mid", "sft"))
    killed = start(words)
    wait_for_steps(base, 20, killed)
    os.kill(killed.pid, signal.SIGKILL)
    # The run itself is asked to end: its output ends with it.
    killed.communicate(timeout=TIME_LIMIT_S)
    before = len(losses(base))
    assert 20 <= before < BASE_STEPS
    again = start(words)
    shown = again.communicate(timeout=TIME_LIMIT_S)[0]
    assert again.returncode == 0, shown
    for step in ("check", "tokenizer", "tokens of the text", "conversations of mid", "conversations of sft"):
        assert f", {step}: complete\n" in shown
    assert "resumes after step " in shown
    assert (len(losses(base)), len(losses(mid)), len(losses(sft))) == (BASE_STEPS, 12, 12)
    for folder, earlier in ((mid, base), (sft, mid)):
        assert record(folder)["config"]["init"]["run"] == str(earlier)
        assert (folder / "evaluation" / "mmlu.json").is_file()
    assert card_stages(tmp_path, "sft_d4") == ["base", "mid", "SFT", "RL", "all"]
    assert f"\n  efficientbench chat {sft}\n" in shown
    assert efficientbench("chat", str(sft), "-p", "What is 6*7?", expect=0).stdout.strip()


def test_the_simulated_npu_goes_through_all_stages(tmp_path: Path, shared_data: Path) -> None:
    words = (*prepared(tmp_path, shared_data, "npu"), "training.steps=6")
    npu = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SIMULATED)]), "SIMULATED_NPUS": "1"}
    speedrun = start(words, "speedrun_npu.sh", **npu, SIMULATED_NPU="Ascend910B2")
    shown = speedrun.communicate(timeout=TIME_LIMIT_S)[0]
    assert speedrun.returncode == 0, shown
    records = [record(run_folder(tmp_path, stage)) for stage in ("base", "mid", "sft")]
    assert [each["device_name"] for each in records] == ["Ascend910B2"] * 3
    assert (tmp_path / "work" / "runs" / "report_card.md").is_file()
