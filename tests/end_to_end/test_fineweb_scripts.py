"""The quick FineWeb test as a user calls it, with real text on the CPU: a further call keeps what is done."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from replicas.places import job_environment
from support.command_line import ROOT, losses, record

pytestmark = pytest.mark.proof

# The embedding alone keeps its size: 65,536 tokens.
NARROW = (
    *("model.layers=2", "model.hidden_size=64", "model.heads=4", "model.head_dim=16", "model.ffn_hidden_size=128"),
    *("model.attention.query_groups=4", "training.seq_len=64"),
)


def test_the_quick_test_goes_from_text_to_evaluation_and_repeats_no_stage(tmp_path: Path, shared_data: Path) -> None:
    text = shared_data / "fineweb_edu" / "heuristic_split.jsonl"

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(ROOT / "launchers" / "quick_fineweb_test.sh"), "--data", str(text), "--device", "cpu"]
        return subprocess.run(
            [*command, "--work", str(tmp_path / "work"), *NARROW, *words],
            env=job_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    mistaken = call("training.steps=3")
    assert mistaken.returncode == 2
    assert "training.steps: 3 of the 15 steps" in mistaken.stderr
    assert not (tmp_path / "work" / "tokenizer").exists()
    done = call()
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "work" / "runs" / "base_d8" / "seed_1234"
    written = record(run)
    assert written["status"] == "completed"
    assert written["validation_loss"] < losses(run)[0]
    assert {
        f"validation loss  {written['validation_loss']:.4f} nats",
        f"bits per byte    {written['bits_per_byte']:.4f} bits",
    } <= set(done.stdout.splitlines())
    again = call()
    assert again.returncode == 0
    assert {
        f"== tokenizer: complete, {tmp_path / 'work' / 'tokenizer'}",
        f"== tokens: complete, {tmp_path / 'work' / 'tokens' / 'fineweb'}",
    } <= set(again.stdout.splitlines())
    assert "seed 1234: complete, kept" in again.stdout
    assert "step " not in again.stdout.split("== training")[1].split("base_d8, 1 run ")[0]
