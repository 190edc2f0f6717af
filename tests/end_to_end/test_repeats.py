"""Repeats of a run and their comparison, by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import efficientbench, record

# So fast that the loss falls from each validation to the next.
LEARNS = ("training.steps=12", "training.learning_rate=1e-2")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, cache: str) -> tuple[str, ...]:
    from support.command_line import TINY

    output = tmp_path_factory.mktemp("repeats")
    return (f"output={output}", f"data.cache={cache}", *TINY, *LEARNS, "training.validate_every_tokens=512")


def test_repeats_are_kept_resumed_and_compared(words: tuple[str, ...]) -> None:
    folder = Path(words[0].removeprefix("output=")) / "gqa_1.5B_smoke"
    done = efficientbench("run", "gqa_1.5B", "--smoke", "--repeat", "1", *words)
    assert (done.returncode, done.stderr) == (0, "")
    written = record(folder / "seed_1234")
    done = efficientbench("run", "gqa_1.5B", "--smoke", "--repeat", "2", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "repeat 1 of 2, seed 1234: complete, kept" in done.stdout
    assert "repeat 2 of 2, seed 1235: trains" in done.stdout
    assert "gqa_1.5B (smoke), 2 runs (seeds 1234, 1235)" in done.stdout
    first, second = (record(folder / f"seed_{seed}") for seed in (1234, 1235))
    assert first == written
    assert (first["seed"], second["seed"]) == (1234, 1235)
    assert first["train_loss"] != second["train_loss"]
    # Both seeds are judged by the same text: it has the same bytes for its tokens.
    bytes_of = [content["validation_loss"] / content["bits_per_byte"] for content in (first, second)]
    assert bytes_of[0] == pytest.approx(bytes_of[1], rel=1e-12)
    # 128 tokens a step: 512 are complete after every fourth.
    assert [point["tokens"] for point in first["quality_curve"]] == [512, 1024, 1536]
    assert first["quality_curve"][0]["measured_tokens"] == 512 - 128

    compared = efficientbench("compare", str(folder), str(folder / "seed_1234"), COLUMNS="160")
    assert (compared.returncode, compared.stderr) == (0, "")
    assert "Identical models (A/A test)" in compared.stdout
    assert "To a validation loss of" in compared.stdout


def test_mistakes_end_with_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        (("run", "gqa_1.5B", "--repeat", "0"), "error: --repeat: 0 runs are none; 1 or more"),
        (("compare", str(tmp_path), str(tmp_path)), f"error: {tmp_path}: holds no run's record yet"),
        (("compare", str(tmp_path / "a"), str(tmp_path)), f"error: {tmp_path / 'a'}: there is no such folder"),
    ):
        done = efficientbench(*arguments)
        assert done.returncode == 2, arguments
        assert done.stderr.startswith(message)
        assert done.stderr.count("\n") == 1
