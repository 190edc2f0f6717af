"""A run whose layers are of several kinds: trained, killed, resumed, reported, evaluated, and made to generate."""

from __future__ import annotations

import csv
import signal
from pathlib import Path

import pytest
from support.command_line import TINY, efficientbench, interrupted, losses, record

from efficientbench.training.checkpoints.manifest import complete

pytestmark = pytest.mark.proof


def test_a_window_hybrid_is_killed_resumed_and_reported(tmp_path: Path, cache: str) -> None:
    shapes = [word for word in TINY if not word.startswith(("model.layers", "training.steps"))]
    few = ("model.kinds.swa.attention.window=8", "training.steps=40", "checkpoint.interval=10")
    words = ("run", "swa_3to1_1.5B", "--smoke", f"data.cache={cache}", *shapes, *few)
    efficientbench(*words, f"output={tmp_path / 'whole'}", expect=0)
    whole, folder = (tmp_path / name / "swa_3to1_1.5B_smoke" for name in ("whole", "killed"))
    again = (*words, f"output={tmp_path / 'killed'}")
    assert interrupted(folder, again, signal.SIGKILL, 23) == 1
    killed_after = int(complete(folder)[-1].name.removeprefix("step_"))
    assert f"resumes after step {killed_after}" in efficientbench(*again, expect=0).stdout
    assert losses(folder) == losses(whole)
    content = record(folder)
    assert content["config"]["model"]["pattern"] == ["swa", "swa", "swa", "own"]
    assert content["validation_loss"] == record(whole)["validation_loss"]
    assert content["keys_read_per_query"] < content["dense_keys_per_query"]
    efficientbench("report", str(folder.parent), expect=0)
    (row,) = csv.DictReader((folder.parent / "report.csv").read_text(encoding="utf-8").splitlines())
    assert row["layer_kinds"] == "6 swa, 2 own"
    # Past the window and beyond the ring's width.
    asked = ("--prompt", "The cat", "--max-new-tokens", "24", "--temperature", "0")
    assert efficientbench("generate", str(folder), *asked, expect=0).stdout.strip()
    assert "bits_per_byte" in efficientbench("evaluate", str(folder), expect=0).stdout
