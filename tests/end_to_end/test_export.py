"""Runs exported from the command line: transformers computes the validation loss that the run recorded."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from oracles.validation import validation_pieces
from support.chat_tokenizers import behind_qwen2s_split, of_words
from support.command_line import TINY, damage, efficientbench, record

from efficientbench.basics.errors import CheckpointError, ConfigError
from efficientbench.export.hugging_face import export

HOSTILE = 'a run\'s $(touch pwned) `touch pwned`; "quoted"\n..\\ *é'


@dataclass(frozen=True)
class Run:
    """A run of the matrix with tiny shapes: its words, and transformers' class for it."""

    name: str
    words: tuple[str, ...]
    class_name: str
    split: Callable[[Path], None] | None = None
    """What it changes of its tokenizer's folder."""


RUNS = {
    # The vocabulary is padded for two ranks, and the checkpoint is put together from both.
    "gqa": Run("gqa_1.5B", ("parallel.tp=2", "model.vocab_size=1025", "training.steps=12"), "LlamaForCausalLM"),
    "mla": Run(
        "mla_1.5B",
        ("parallel.pp=2", "training.learning_rate=1e-2", "checkpoint.interval=3", "training.validation_interval=3"),
        "DeepseekV2ForCausalLM",
    ),
    "windows": Run(
        "gqa_1.5B",
        (
            *("model.layers=3", "model.pattern=[swa,swa,full]", "model.init_std=0.1"),
            "model.kinds={swa: {attention: {window: 9}}, full: {position: {kind: none}}}",
        ),
        "SmolLM3ForCausalLM",
    ),
    "Qwen2's windows": Run(
        "gqa_1.5B",
        (*("model.layers=3", "model.pattern=[swa,own]", "model.init_std=0.1"), "model.kinds.swa.attention.window=9"),
        "Qwen2ForCausalLM",
        behind_qwen2s_split,
    ),
    "Qwen3's windows": Run(
        "gqa_1.5B",
        (
            *("model.layers=3", "model.pattern=[swa,own]", "model.init_std=0.1", "model.qk_norm=true"),
            *("model.kinds.swa.attention.window=9", "model.attention.qkv_bias=false", "model.tied=false"),
        ),
        "Qwen3ForCausalLM",
    ),
    "sinks": Run(
        "gqa_1.5B",
        (
            *("model.layers=4", "model.attention.sinks=true", "model.init_std=0.1", "training.learning_rate=1e-2"),
            *("model.pattern=[swa,own]", "model.kinds={swa: {attention: {window: 9}}}", "parallel.pp=2"),
        ),
        "GraniteSWAForCausalLM",
    ),
    "GDN": Run(
        "gqa_1.5B",
        (
            *("model.layers=4", "model.pattern=[gdn,gdn,gdn,own]", "model.attention.gate=true", "model.qk_norm=true"),
            *("model.norm_weights=zero_centred", "model.norm_epsilon=1e-3", "model.init_std=0.1"),
            *("model.position.share=0.5", "training.learning_rate=1e-2"),
        ),
        "Qwen3_5ForCausalLM",
    ),
    "KDA": Run("kda_3to1_1.5B", ("model.layers=4", "training.learning_rate=1e-2"), "KimiLinearForCausalLM"),
    "Mamba-2": Run(
        "mamba2_3to1_1.5B", ("model.layers=4", "model.init_std=0.1", "training.learning_rate=1e-2"), "BambaForCausalLM"
    ),
    "moe": Run("moe_1.5Bx8", ("parallel.dp=2", "parallel.ep=2"), "Qwen2MoeForCausalLM"),
}

Trained = Callable[[str], Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Trained:
    """`trained(name)`: the folder of one of RUNS, trained once."""
    finished: dict[str, Path] = {}

    def train(name: str) -> Path:
        if name not in finished:
            output, run = tmp_path_factory.mktemp(name), RUNS[name]
            words = (f"output={output}", f"data.cache={cache}", *TINY, "training.validation_tokens=1500", *run.words)
            if run.split is not None:
                of_words(output / "tokenizer", [Path(__file__).read_text()])
                run.split(output / "tokenizer")
                words += (f"data.tokenizer={output / 'tokenizer'}",)
            efficientbench("run", run.name, "--smoke", *words, expect=0)
            finished[name] = output / f"{run.name}_smoke"
        return finished[name]

    return train


def loss_of(folder: Path, run: Path) -> float:
    """Mean loss of an exported model over the run's validation text."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    total, targets = 0.0, 0
    with torch.no_grad():
        for piece in map(torch.from_numpy, validation_pieces(run)):
            logits = model(piece[None, :-1]).logits[0].float()
            total += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
            targets += len(piece) - 1
    return total / targets


@pytest.mark.proof
@pytest.mark.usefixtures("without_fla")
@pytest.mark.parametrize("name", RUNS)
def test_transformers_computes_the_recorded_loss(trained: Trained, name: str, tmp_path: Path) -> None:
    run = trained(name)
    done = efficientbench("export", str(run), "--to", "hf", str(tmp_path / "model"), expect=0, stderr="")
    assert f"{RUNS[name].class_name} of step" in done.stdout
    recorded = record(run)["validation_loss"]
    found = loss_of(tmp_path / "model", run)
    exact = "windows" in name or name in ("sinks", "GDN", "KDA", "Mamba-2")
    assert found == pytest.approx(recorded, abs=1e-6 if exact else 1e-4)
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"| validation loss of these weights, nats | {recorded} |" in card


@pytest.mark.proof
def test_a_run_is_exported_by_name_and_a_damaged_checkpoint_is_skipped(trained: Trained, tmp_path: Path) -> None:
    run, out = tmp_path / HOSTILE, tmp_path / f"-{HOSTILE}" / "model"
    shutil.copytree(trained("mla"), run)
    newest, before = (run / "checkpoint" / f"step_{step:08d}" for step in (6, 3))
    damaged = next(newest.glob("*.distcp"))
    damage(damaged)
    with pytest.raises(ConfigError, match="no such checkpoint; there: step_00000003, step_00000006"):
        export(run, out, step=4)
    with pytest.raises(CheckpointError, match=re.escape(f"{damaged}: damaged")):
        export(run, out, step=6)
    assert sorted(tmp_path.iterdir()) == [run]
    done = efficientbench("export", str(run), str(out), cwd=tmp_path, expect=0)
    assert done.stderr.startswith(f"warning: {damaged}: damaged")
    assert "DeepseekV2ForCausalLM of step 3: " in done.stdout
    assert sorted(tmp_path.glob("*")) + list(out.parent.iterdir()) == [*sorted([run, out.parent]), out]
    assert before.is_dir()
    at_step_3 = next(point["loss"] for point in record(run)["quality_curve"] if point["step"] == 3)
    assert loss_of(out, run) == pytest.approx(at_step_3, abs=1e-4)


@pytest.mark.proof
@pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
@pytest.mark.parametrize("name", ["gqa", "windows", "sinks"])
def test_an_exported_run_can_be_fine_tuned(trained: Trained, name: str, tmp_path: Path) -> None:
    run, model = trained(name), tmp_path / "model"
    efficientbench("export", str(run), str(model), expect=0)
    steps = ("training.steps=4", "training.validate_every_steps=0", "data.validation_examples=16")
    places = (f"model={model}", f"output={tmp_path}", f"cache={tmp_path / 'cache'}")
    efficientbench("finetune", "lora_tiny", "device=cpu", "cpu_ranks=1", "zero.stage=0", *steps, *places, expect=0)
    content = record(tmp_path / "lora_tiny")
    assert (content["status"], content["finetuning"]["base_model"]) == ("completed", str(model))
    # The class has a bias on the output projection of attention as well, zeros. Where training multiplied what it
    # embeds, the export has a table for that; GraniteSWA has a key for it.
    of_run, shape = record(run), record(run)["config"]["model"]
    table = 0 if name == "sinks" else shape["vocab_size"] * shape["hidden_size"]
    assert content["parameters"] == of_run["parameters"] + shape["layers"] * shape["hidden_size"] + table
    # Formulas of fine-tuning count full attention alone.
    assert (content["flops_per_token"] is None) == (name != "gqa")
    before, after = (point["loss"] for point in content["finetuning"]["held_out"])
    assert abs(after - before) > 1e-3
