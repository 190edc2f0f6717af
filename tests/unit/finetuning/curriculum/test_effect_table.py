"""The effect of a curriculum, read from records."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.metrics_parts import make_record
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.cli.app import app
from efficientbench.finetuning.curriculum.effect_table import print_effects
from efficientbench.metrics.records.record import write_record

NOISE = (0.0, 0.1, -0.1, 0.05, -0.05, 0.02)


def write_run(folder: Path, order: str, seed: int, loss: float, **given: Any) -> None:
    """Write the record of a fine-tuning whose held-out loss fell from 4 to `loss`."""
    curriculum = {"use": "auto", "order": order, "seed": seed, "levels": ["easy", "hard"]}
    config = {
        "curriculum": curriculum,
        "training": {"seed": seed, "steps": given.get("steps", 20)},
        "label": f"{order}_{seed}",
        "wandb": given.get("wandb"),
        "faults": {"hang_limit_s": given.get("hang_limit_s", 600.0)},
    }
    held_out = [
        {"step": 0, "supervised_tokens": 0, "loss": 4.0, "by_level": {"easy": 3.0, "hard": 5.0}},
        {"step": 20, "supervised_tokens": 1000, "loss": loss, "by_level": {"easy": loss - 1, "hard": loss + 1}},
    ]
    finetuning = {"curriculum": {"used": order, "reason": given.get("reason")}, "held_out": held_out}
    record = make_record({"run": "lora_tiny", "seed": seed, "status": "completed", "config": config})
    path = folder / f"{order}_{seed}" / "record.json"
    path.parent.mkdir(parents=True)
    write_record(record.model_copy(update={"finetuning": finetuning}), path)


def printed(folder: Path) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    print_effects(folder, console)
    return console.export_text()


def row(text: str, effect: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(effect))


def test_orders_are_compared_in_pairs_and_by_level(tmp_path: Path) -> None:
    """Seeds differ by more than the orders; paced is 0.05 better than shuffled, shuffled like random."""
    for seed, noise in enumerate(NOISE):
        # A sink changes nothing, nor does a limit.
        write_run(tmp_path, "paced", seed, 2.95 + noise + seed * 0.001, wandb="mine", hang_limit_s=900.0)
        write_run(tmp_path, "shuffled", seed, 3.0 + noise)
        write_run(tmp_path, "random", seed, 3.0 + noise + 0.02 * (-1) ** seed)
    text = printed(tmp_path)
    assert "-0.0475" in row(text, "order: paced − shuffled")
    assert row(text, "order: paced − shuffled").endswith("0.0475 nats lower")
    assert row(text, "mixture: shuffled − random").endswith("no difference measurable")
    assert "difficulties" not in text
    assert [line.split()[0] for line in text.splitlines() if "-0.0475" in line][1:] == ["easy", "hard"]


def test_a_run_that_fell_back_is_excluded_with_its_reason(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "paced", seed, 2.9 + seed)
        write_run(tmp_path, "shuffled", seed, 3.0 + seed)
    write_run(tmp_path, "reversed", 0, 3.0, reason="9 steps are fewer than 10")
    text = printed(tmp_path)
    assert "lora_tiny, seed 0, is skipped: 9 steps are fewer than 10" in text
    assert "no verdict: 2 seeds, 5 are needed" in text


def test_runs_of_different_settings_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "paced", 0, 3.0)
    write_run(tmp_path, "shuffled", 0, 3.0, steps=40)
    with pytest.raises(ConfigError, match="differ in more than"):
        printed(tmp_path)


def test_a_folder_without_two_orders_is_refused_with_the_orders_needed(tmp_path: Path) -> None:
    write_run(tmp_path, "paced", 0, 3.0)
    with pytest.raises(ConfigError, match="no two orders to compare.*paced and shuffled"):
        printed(tmp_path)
    with pytest.raises(MetricsError, match="no such folder"):
        printed(tmp_path / "missing")


def test_the_command_prints_the_effects(tmp_path: Path) -> None:
    for seed in range(5):
        write_run(tmp_path, "paced", seed, 2.9 + seed * 0.001)
        write_run(tmp_path, "shuffled", seed, 3.0)
    done = CliRunner().invoke(app, ["finetune", "effect", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "0.0980 nats lower" in done.output
    assert CliRunner().invoke(app, ["finetune", "effect"]).exit_code == 2
