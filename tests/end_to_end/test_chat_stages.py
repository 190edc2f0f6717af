"""From text to a chat model by the runs of chat.yaml: each stage begins with what the one before learned."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chat_stages import Amounts, Stages
from support.command_line import efficientbench, losses, record, steps

pytestmark = pytest.mark.proof


def test_sft_after_base_and_mid_is_better_than_from_random_weights(shared_data: Path, tmp_path: Path) -> None:
    text = shared_data / "fineweb_edu" / "fineweb_sample.txt"
    amounts = Amounts(base_steps=60, mid_rows=400, sft_rows=250, validation_tokens=2000)
    stages = Stages(tmp_path, shared_data / "gsm8k" / "train.jsonl", text, amounts)
    held = stages.held_out(seed=7)
    # The interval over seeds is measured by tests/benchmarks/chat_stages.py.
    assert held.from_base < held.from_random - 0.5
    base, mid, chat = (stages.run_folder(stage, 7) for stage in ("base", "mid", "sft"))
    alone = stages.run_folder("sft", 7, "random")
    for folder, before in ((mid, base), (chat, mid)):
        assert record(folder)["config"]["init"]["run"] == str(before)
    assert losses(chat)[0] < losses(alone)[0] - 0.5
    # The same SFT: one epoch of the same sequences, whose supervised tokens are counted.
    counts = [
        [(line["tokens"], line["supervised_tokens"]) for line in steps(folder) if line["kind"] == "step"]
        for folder in (chat, alone)
    ]
    assert counts[0] == counts[1]
    assert all(0 < supervised < tokens for tokens, supervised in counts[0])
    # Another depth is another model, and is refused by name before anything is written.
    other = ("run", "sft_d12", "--smoke", f"init.run={mid}", f"data.path={tmp_path / 'sft'}", f"output={tmp_path}")
    done = efficientbench(*other, expect=2)
    assert "is of another model than this run: model.hidden_size is 64 there and 96 here" in done.stderr
    assert not (tmp_path / "sft_d12_smoke").exists()
