"""From text to a chat model on what the package carries: without a network, killed on the way, and called once more."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.command_line import ROOT, TIME_LIMIT_S, efficientbench, losses, record, wait_for_steps
from support.speedruns import card_stages, run_folder, start

pytestmark = pytest.mark.proof

STAGES = ("base", "mid", "sft", "rl")
STEPS = 15
SHORT = ("--limit=4", f"training.steps={STEPS}", "rl:rl.samples=2", "rl:rl.max_new_tokens=8", "rl:rl.test_every=0")


@pytest.mark.timeout(8 * TIME_LIMIT_S)
def test_a_smoke_speedrun_goes_through_all_stages_without_a_network(tmp_path: Path) -> None:
    words = ("--smoke", "--device=cpu", f"--work={tmp_path / 'work'}", *SHORT)
    watched = tmp_path / "watched"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "replicas" / "watched")])
    changes = {"PYTHONPATH": paths, "WATCHED": str(watched)}
    base, *_ = folders = [run_folder(tmp_path, stage, "d12_smoke") for stage in STAGES]
    killed = start(words, **changes)
    wait_for_steps(base, 2, killed)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=TIME_LIMIT_S)
    again = start(words, **changes)
    shown = again.communicate(timeout=6 * TIME_LIMIT_S)[0]
    assert again.returncode == 0, shown
    assert ", tokens of the text: complete\n" in shown
    assert [len(losses(folder)) for folder in folders] == [STEPS] * 4
    assert all(record(folder)["smoke"] for folder in folders)
    assert (base / "evaluation" / "core.json").is_file()
    for folder in folders[1:]:
        assert {path.stem for path in (folder / "evaluation").glob("*.json")} == {"arc_easy", "mmlu", "gsm8k"}
    assert card_stages(tmp_path, "rl_d12_smoke") == ["base", "mid", "SFT", "RL", "all"]
    card = (tmp_path / "work" / "runs" / "report_card.md").read_text(encoding="utf-8")
    assert "its figures do not stand for the named one's" in card
    done = watched.read_text(encoding="utf-8").splitlines()
    assert [line for line in done if line.startswith("asked for")] == []
    # So much is seen of it.
    assert any("efficientbench.worker" in line for line in done)

    watched.unlink()
    once_more = start(words, **changes)
    shown = once_more.communicate(timeout=TIME_LIMIT_S)[0]
    assert once_more.returncode == 0, shown
    assert [line for line in shown.splitlines() if line.startswith("==") and "skipped" not in line] == [
        line for line in shown.splitlines() if line.startswith("==") and line.endswith(": complete")
    ]
    assert f"\n  efficientbench chat {folders[-1]}\n" in shown
    started = watched.read_text(encoding="utf-8").splitlines() if watched.exists() else []
    assert [line for line in started if "efficientbench" in line] == []

    # A changed key is not what is there.
    changed = efficientbench("speedrun", *words, "rl:training.steps=16", "--dry-run", expect=0).stdout
    assert "rl_d12\n   efficientbench run rl_d12" in changed
    assert "sft_d12: complete\n" in changed
    assert efficientbench("chat", str(folders[-1]), "-p", "What is 2 plus 3?", expect=0).stdout.strip()
