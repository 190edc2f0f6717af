"""Architectures that go through the stages of a chat model on the same data, and are laid side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import efficientbench, losses, record
from support.speedruns import KEYS, prepared

from efficientbench.speedrun.request import MID, SFT, Request, keep_choices

pytestmark = pytest.mark.proof

STEPS = 12


def test_architectures_are_compared_by_loss_time_energy_and_answers(tmp_path: Path, shared_data: Path) -> None:
    prepared(tmp_path, shared_data)
    work = tmp_path / "work"
    # As a speedrun leaves it, whose text and conversations are learned.
    data = {"text": tmp_path / "text.txt", "task_data": tmp_path / "items"}
    mixtures = {stage: tmp_path / f"{stage}.yaml" for stage in (MID, SFT)}
    keep_choices(Request(work, "cpu", **data, mixtures=mixtures, vocabulary=1024, limit=4, short=True))
    sweep = ("sweep", "--only=mqa,mla", "--sizes=d4", "--stages=base,mid", f"--work={work}", "--generate")
    efficientbench(*sweep, "device=cpu", *KEYS, f"training.steps={STEPS}", expect=0)
    runs = work / "runs"
    for variant in ("mqa", "mla"):
        base, mid = (runs / f"{stage}_{variant}_d4" / "seed_1234" for stage in ("base", "mid"))
        assert (len(losses(base)), len(losses(mid))) == (STEPS, STEPS)
        assert record(mid)["config"]["init"]["run"] == str(base)
    card = (runs / "report_card.md").read_text(encoding="utf-8")
    table = [line for line in card.splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table)
    stages = {(row[0], row[1]): dict(zip(header, row, strict=True)) for row in rows}
    assert [name for name, _ in stages][::5] == ["mid_mla_d4/seed_1234", "mid_mqa_d4/seed_1234"]
    for variant in ("mla", "mqa"):
        run = f"mid_{variant}_d4/seed_1234"
        assert [stage for name, stage in stages if name == run] == ["base", "mid", "SFT", "RL", "all"]
        for figure in ("loss", "hours", "TTFT p50, ms", "decode tokens/s"):
            assert stages[run, "mid"][figure] != "n/a", figure
    assert "Generation: prompts of 2,048 tokens, batch 1, " in card
