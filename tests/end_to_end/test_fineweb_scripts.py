"""The quick FineWeb test as a user calls it, with real text on the CPU: a further call keeps what is done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import ROOT, environment, record

pytestmark = pytest.mark.proof

# The embedding alone keeps its size: 65,536 tokens.
NARROW = (
    *("model.layers=2", "model.hidden_size=64", "model.heads=4", "model.head_dim=16", "model.ffn_hidden_size=128"),
    *("model.attention.query_groups=4", "training.seq_len=64"),
)


def test_text_tokenizer_tokens_training_evaluation(tmp_path: Path, shared_data: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if shutil.which("efficientbench", path=path) is None:
        pytest.skip("the package is not installed in this environment, so the script would set up one of its own")
    text = shared_data / "fineweb_edu" / "heuristic_split.jsonl"

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(ROOT / "launchers" / "quick_fineweb_test.sh"), "--data", str(text), "--device", "cpu"]
        return subprocess.run(
            [*command, "--work", str(tmp_path / "work"), *NARROW, *words],
            env=environment(PATH=path, VIRTUAL_ENV=sys.prefix),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    mistaken = call("training.steps=3")
    assert mistaken.returncode == 2
    assert "training.steps: 3 of the 15 steps" in mistaken.stderr
    done = call()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "== tokenizer: complete" in done.stdout
    assert "== tokens: complete" in done.stdout
    written = record(tmp_path / "work" / "runs" / "fineweb_d8" / "seed_1234")
    assert written["status"] == "completed"
    told = done.stdout.splitlines()
    assert f"validation loss  {written['validation_loss']:.4f} nats" in told
    assert f"bits per byte    {written['bits_per_byte']:.4f} bits" in told
    # Below that of a guess among 65,536 tokens.
    assert written["validation_loss"] < 11.0
    again = call()
    assert again.returncode == 0
    assert "seed 1234: complete, kept" in again.stdout
    assert "step " not in again.stdout.split("== training")[1].split("fineweb_d8, 1 runs")[0]
