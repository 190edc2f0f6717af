"""Weights & Biases as a further sink of runs, by its own package without a network."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import TIME_LIMIT_S, efficientbench, environment, interrupted, losses, record, steps
from support.wandb_file import offline_runs

pytestmark = pytest.mark.proof

OFFLINE = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
WITHOUT = """
import sys
sys.modules["wandb"] = None
from efficientbench.cli import main
main()
"""
"""The command line as it is where the package is not installed."""
STEPS = 300
"""More than a run takes in the time that it needs to hear of a signal."""


def test_wandb_gets_steps_settings_and_figures(tiny: tuple[str, ...], folder: Path) -> None:
    done = efficientbench(*tiny, "wandb=trial", expect=0, **OFFLINE)
    [sent] = offline_runs(folder)
    assert f"Weights & Biases: wandb sync {folder / 'wandb'}/offline-run-" in done.stdout
    assert (sent.project, sent.name, sent.exit_code) == ("trial", "gqa_1.5B_smoke", 0)
    assert sent.scalars("train/loss") == list(enumerate(losses(folder), start=1))
    tokens = [line["tokens_total"] for line in steps(folder) if line["kind"] == "step"]
    assert sent.scalars("by_tokens/train_loss", "tokens") == list(zip(tokens, losses(folder), strict=True))
    recorded = record(folder)
    assert sent.scalars("validation/loss") == [(6, recorded["validation_loss"])]
    for figure in ("al_s", "tokens_per_s", "validation_loss", "parameters"):
        assert sent.summary[figure] == recorded[figure]
    assert sent.settings["model"] == recorded["config"]["model"]
    assert sent.settings["resumed_after"] == 0


def test_a_run_without_wandb_sends_nothing(tiny: tuple[str, ...], folder: Path) -> None:
    efficientbench(*tiny, expect=0, **OFFLINE)
    assert not (folder / "wandb").exists()


def test_each_attempt_is_a_separate_run_in_one_group(tiny: tuple[str, ...], folder: Path) -> None:
    words = (*tiny, f"training.steps={STEPS}", "wandb=trial")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in OFFLINE.items():
            patch.setenv(name, value)
        assert interrupted(folder, words, signal.SIGTERM, after=3) == 143
        after = len(losses(folder))
        efficientbench(*words, expect=0)
    first, second = offline_runs(folder)
    assert {first.group, second.group} == {"gqa_1.5B_smoke"}
    assert (first.settings["resumed_after"], second.settings["resumed_after"]) == (0, after)
    assert [step for step, _ in first.scalars("train/loss") + second.scalars("train/loss")] == list(range(1, STEPS + 1))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
def test_a_fine_tuning_is_sent_under_the_same_names(tmp_path: Path) -> None:
    words = ("finetune", "lora_tiny", "device=cpu", f"cache={tmp_path / 'cache'}", f"output={tmp_path}")
    keys = ("training.steps=4", "training.validate_every_steps=0", "data.validation_examples=24", "wandb=trial")
    efficientbench(*words, *keys, expect=0, **OFFLINE)
    folder = tmp_path / "lora_tiny"
    [sent] = offline_runs(folder)
    assert (sent.name, sent.exit_code) == ("lora_tiny", 0)
    assert sent.scalars("train/loss") == list(enumerate(losses(folder), start=1))
    assert [step for step, _ in sent.scalars("validation/loss")] == [0, 4]
    assert sent.summary["validation_loss"] == record(folder)["validation_loss"]


@pytest.mark.parametrize("words", [("run", "gqa_1.5B", "--smoke"), ("finetune", "lora_tiny"), ("speedrun", "--short")])
def test_a_run_is_refused_without_the_wandb_package(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "output"
    place = (f"--work={folder}", "--device=cpu") if words[0] == "speedrun" else (f"output={folder}", "device=cpu")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words, *place, "wandb=trial"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )
    told = "error: wandb: Weights & Biases is not installed: pip install 'efficientbench[wandb]'\n"
    assert (done.returncode, done.stderr) == (2, told), done.stdout
    # A speedrun writes the matrix that names its runs.
    assert {path.name for path in folder.glob("*")} <= {"chat_d4.yaml", "lock"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
def test_a_diverged_fine_tuning_is_a_failed_run_in_wandb(tmp_path: Path) -> None:
    places = ("device=cpu", f"cache={tmp_path / 'cache'}", f"output={tmp_path}", "cpu_ranks=1", "zero.stage=0")
    keys = ("training.steps=4", "training.validate_every_steps=0", "data.validation_examples=24", "lr=1e30")
    done = efficientbench("finetune", "lora_tiny", *places, *keys, "wandb=trial", **OFFLINE)
    assert "the loss of step 2 is nan" in done.stderr
    [sent] = offline_runs(tmp_path / "lora_tiny")
    assert (done.returncode != 0, sent.exit_code) == (True, 1)
    assert [step for step, _ in sent.scalars("train/loss")] == [1]
