"""The base model's losses as a difficulty: right, independent of the batch, and read by a curriculum."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.app import app
from efficientbench.finetuning.base_model import find_model, load_tokenizer
from efficientbench.finetuning.curriculum.base_losses import base_losses, write_losses
from efficientbench.finetuning.curriculum.choice import choose_order
from efficientbench.finetuning.curriculum.config import CurriculumConfig
from efficientbench.finetuning.curriculum.difficulty import Sample
from efficientbench.finetuning.examples.examples import tokenized
from efficientbench.finetuning.examples.rows import read_rows
from efficientbench.finetuning.load import resolve_tuning


@pytest.mark.parametrize(
    ("name", "told"), [("rows.json", r"does not end in \.jsonl"), ("there.jsonl", "is there already")]
)
def test_an_existing_output_or_another_file_type_is_refused(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").touch()
    with pytest.raises(ConfigError, match=told):
        write_losses(resolve_tuning("lora_tiny"), tmp_path / name)
    assert CliRunner().invoke(app, ["finetune", "losses", "lora_tiny"]).exit_code == 2


@pytest.mark.proof
@pytest.mark.skipif("sys.version_info < (3, 11)", reason="the command needs Python 3.11, as TRL does")
def test_losses_do_not_depend_on_the_batch_and_make_a_curriculum(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    rows = tmp_path / "rows.jsonl"
    few = [{"messages": row.messages} for row in read_rows(None, "difficulty", ("one",))[:40]]
    rows.write_text("".join(json.dumps(row) + "\n" for row in few), encoding="utf-8")
    words = (f"cache={tmp_path}", "device=cpu", "training.micro_batch_size=3", "curriculum.field=loss")
    scored = tmp_path / "scored.jsonl"
    done = CliRunner().invoke(app, ["finetune", "losses", "lora_tiny", str(scored), "--data", str(rows), *words])
    assert done.exit_code == 0, done.output
    config = resolve_tuning("lora_tiny", overrides=[*words, f"data.path={scored}"])
    found = read_rows(str(scored), "loss", config.curriculum.levels)
    assert f"{len(found)} examples" in done.output

    base = find_model("tiny", tmp_path)
    # Of float64, so that what is compared with has no error of its own.
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64).eval()
    examples, kept, too_long = tokenized(found, load_tokenizer(base), config.data)
    assert (len(kept), too_long) == (len(found), 0)
    for number, row in enumerate(found):
        ids, learned = examples[number]
        tokens = torch.from_numpy(ids.astype(np.int64))
        with torch.no_grad():
            chances = model(tokens[None]).logits[0].log_softmax(-1)
        answers = [place for place in range(1, len(ids)) if learned[place]]
        expected = -np.mean([float(chances[place - 1, tokens[place]]) for place in answers])
        assert row.difficulty == pytest.approx(expected, rel=1e-5)
    assert base_losses(model, examples, 1) == pytest.approx(base_losses(model, examples, 7), rel=1e-5)

    samples = [Sample(row.difficulty, row.place) for row in found]
    chosen = choose_order(CurriculumConfig(use="required", field="loss"), samples, 20, 4)
    easiest = [float(str(row.difficulty)) for row, level in zip(found, chosen.levels, strict=True) if level == 0]
    assert max(easiest) <= np.quantile([float(str(row.difficulty)) for row in found], 0.35)
