"""Repeats of a run and their comparison, by the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import efficientbench, record

from efficientbench.metrics.records.plausible import read_plausible

# So fast that the loss falls from each validation to the next.
LEARNS = ("training.steps=12", "training.learning_rate=1e-2")


@pytest.mark.proof
def test_repeats_are_kept_resumed_and_compared(tiny: tuple[str, ...], folder: Path) -> None:
    words = (*tiny, *LEARNS, "training.validate_every_tokens=512")
    efficientbench(*words, "--repeat", "1", expect=0, stderr="")
    written = record(folder / "seed_1234")
    done = efficientbench(*words, "--repeat", "2", expect=0, stderr="")
    for line in ("1 of 2, seed 1234: complete, kept", "2 of 2, seed 1235: trains", "2 runs (seeds 1234, 1235)"):
        assert line in done.stdout
    first, second = (record(folder / f"seed_{seed}") for seed in (1234, 1235))
    assert "the repeats vary training.seed: the weights, and the data order" in done.stdout
    assert [content["data_seed"] for content in (first, second)] == [1234, 1235]
    assert read_plausible(folder / "seed_1234" / "record.json").steps_sha256
    words = (*tiny, *LEARNS, "data.seed=5", f"output={folder.parent / 'apart'}", "--repeat", "1")
    apart = efficientbench(*words, expect=0, stderr="")
    assert "the repeats vary training.seed: the weights; data.seed=5 keeps the data order" in apart.stdout
    assert record(folder.parent / "apart" / folder.name / "seed_1234")["data_seed"] == 5
    assert first == written
    assert (first["seed"], second["seed"]) == (1234, 1235)
    assert first["train_loss"] != second["train_loss"]
    # Both seeds are judged by the same text: it has the same bytes for its tokens.
    bytes_of = [content["validation_loss"] / content["bits_per_byte"] for content in (first, second)]
    assert bytes_of[0] == pytest.approx(bytes_of[1], rel=1e-12)
    # 128 tokens a step: 512 are complete after every fourth.
    assert [point["tokens"] for point in first["quality_curve"]] == [512, 1024, 1536]
    assert first["quality_curve"][0]["measured_tokens"] == 512 - 128

    compared = efficientbench("compare", str(folder), str(folder / "seed_1234"), COLUMNS="160", expect=0, stderr="")
    # So short a training is of speed only: the losses are not compared.
    speed_only = r"Identical models \(A/A test\).*n/a cost to a quality: gqa_1.5B is speed only"
    assert re.search(speed_only, compared.stdout, re.DOTALL)
