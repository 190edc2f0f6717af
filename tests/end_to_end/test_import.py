"""Folders of transformers imported from the command line, exported again, and trained further."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.oracle import relative_error
from support import nanochat_files
from support.checkpoints import read_weights
from support.command_line import TINY, Finished, efficientbench, losses, record
from support.conversation_pairs import VOCABULARY, write_conversations
from support.releases import TRANSFORMERS_5

from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer
from efficientbench.running.trained import TrainedRun

pytestmark = [pytest.mark.proof, TRANSFORMERS_5]
GREEDY = ("--temperature", "0", "--max-new-tokens", "12")
WINDOWS: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layer_interval": 4, "use_sliding_window": True},
    "granite_swa": {"layer_rope_theta": [1e4, 1e4, 1e4, 0], "attention_multiplier": 12**-0.5},
}
"""Model type → the keys of its configuration that no other has."""
NOT_SHAPES = [word for word in TINY if not word.startswith("model.")]


@pytest.fixture(scope="module")
def base(train: Callable[..., Finished]) -> Path:
    finished = train()
    assert finished.done.returncode == 0, finished.done.stderr
    return finished.folder


def evaluated(run: Path, tmp_path: Path, *further: str) -> dict[str, float]:
    """The figures of the task `loss` on a text."""
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"import os {number} " * number}) + "\n" for number in range(1, 9)))
    efficientbench("evaluate", str(run), "--text", str(text), *further, expect=0)
    [path] = run.glob("quantized/*/evaluation/loss.json" if further else "evaluation/loss.json")
    figures: dict[str, float] = json.loads(path.read_text())["figures"]
    return figures


def test_an_export_in_fewer_bits_comes_back_with_the_loss_of_its_weights(base: Path, tmp_path: Path) -> None:
    packed, again, copy = tmp_path / "packed", tmp_path / "again", shutil.copytree(base, tmp_path / "base")
    efficientbench("export", str(copy), str(packed), "--weights", "int8", expect=0)
    done = efficientbench("import", str(packed), "--output", str(again), expect=0, stderr="")
    assert "its weights were int8: the run has their values in fp32" in done.stdout
    rounded = evaluated(copy, tmp_path, "--weights", "int8")
    assert evaluated(again, tmp_path) == pytest.approx(rounded, rel=1e-5)
    assert evaluated(copy, tmp_path)["loss"] != pytest.approx(rounded["loss"], rel=1e-5)


def test_nanochats_own_files_are_exported_with_the_same_logits_and_ids(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, NanoChatConfig

    train_tokenizer([Path(__file__).read_text()], 300, tmp_path / "own")
    encoding = nanochat_files.encoding_of(load_tokenizer(tmp_path / "own"))
    # nanochat's epsilon is torch's own.
    shapes = {"hidden_size": 48, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = NanoChatConfig(
        vocab_size=encoding.n_vocab, initializer_range=0.2, rms_norm_eps=torch.finfo().eps, **shapes
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.model.embed_tokens.weight.data = model.model.embed_tokens.weight.bfloat16().float()
    nanochat_files.write(tmp_path / "d2", model, encoding)
    # Where nanochat keeps it.
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "d2").rename(tmp_path / "checkpoints" / "d2")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "checkpoints" / "d2" / "tokenizer.pkl").rename(tmp_path / "tokenizer" / "tokenizer.pkl")
    done = efficientbench("import", "checkpoints/d2", "--output", "run", cwd=tmp_path, expect=0, stderr="")
    assert done.stdout.startswith("NanoChatForCausalLM, ")
    efficientbench("export", "run", "exported", cwd=tmp_path, expect=0)
    tokens = torch.tensor([encoding.encode_ordinary("from pathlib import Path, 1234")])
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()(tokens).logits
    assert relative_error(found, model(tokens).logits) < 1e-5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert tokenizer.encode("from pathlib import Path, 1234") == tokens[0].tolist()
    assert tokenizer.chat_template is not None


def write_windows(kind: str, folder: Path) -> Path:
    """Write a model with windows in three of four layers and no positions in the fourth, as transformers saves it.

    Returns the prefix of a pair of conversations, whose tokenizer the model has.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    pair = write_conversations(folder / "pair", 60)
    shapes = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
    types = ["sliding_attention"] * 3 + ["full_attention"]
    layers = {"num_hidden_layers": 4, "sliding_window": 9, "layer_types": types}
    numbers = {"initializer_range": 0.2, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    config = AutoConfig.for_model(kind, **shapes, **layers, **numbers, **special, **WINDOWS[kind])
    shutil.copytree(folder / "pair" / "bpe", folder / "model")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if name.endswith("sinks"):
            # Zeros at first, which would hide the sinks of the wrong heads.
            torch.nn.init.normal_(weight)
    model.save_pretrained(folder / "model")
    return pair


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_model_with_windows_generates_and_learns_conversations(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pair, model = write_windows(kind, tmp_path), tmp_path / "model"
    efficientbench("import", "model", "--output", "run", cwd=tmp_path, expect=0, stderr="")

    prompt = "What is 9 times 9, and what was the number before?"
    answer = efficientbench("generate", "run", "--prompt", prompt, *GREEDY, cwd=tmp_path, expect=0).stdout
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    tokens = torch.tensor([tokenizer.encode(prompt)])
    found = loaded.generate(tokens, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert answer.strip() == tokenizer.decode(found[0], skip_special_tokens=True).strip()

    words = ("run", f"{kind}_model", "--matrix", "run/matrix.yaml", "init.run=run", "data.tokenizer=run/tokenizer")
    tuned = (*NOT_SHAPES, "training.objective=sft", f"data.path={pair}", "data.split=[9,1,0]", "output=out")
    efficientbench(*words, *tuned, "training.steps=20", "training.learning_rate=1e-2", cwd=tmp_path, expect=0)
    found_losses = losses(tmp_path / "out" / f"{kind}_model")
    assert found_losses[-1] < 0.8 * found_losses[0]
    assert record(tmp_path / "out" / f"{kind}_model")["config"]["model"]["pattern"] == ["window"] * 3 + ["nope"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
@pytest.mark.parametrize("kind", WINDOWS)
def test_an_imported_model_with_windows_is_fine_tuned(kind: str, tmp_path: Path) -> None:
    write_windows(kind, tmp_path)
    efficientbench("import", "model", "--output", "run", cwd=tmp_path, expect=0, stderr="")
    efficientbench("export", "run", "exported", cwd=tmp_path, expect=0)
    steps = ("training.steps=4", "training.validate_every_steps=0", "data.validation_examples=16")
    places = (f"model={tmp_path / 'exported'}", f"output={tmp_path}", f"cache={tmp_path / 'cache'}")
    efficientbench("finetune", "lora_tiny", "device=cpu", "cpu_ranks=1", "zero.stage=0", *steps, *places, expect=0)
    content = record(tmp_path / "lora_tiny")
    assert (content["status"], content["finetuning"]["base_model"]) == ("completed", str(tmp_path / "exported"))
    before, after = (point["loss"] for point in content["finetuning"]["held_out"])
    assert after < before


def test_an_imported_export_is_equal_bit_for_bit_and_trains_further(base: Path, cache: str, tmp_path: Path) -> None:
    first, run, second = tmp_path / "first model", tmp_path / "run", tmp_path / "second"
    efficientbench("export", str(base), str(first), expect=0)
    done = efficientbench("import", "first model", "--output", "run", cwd=tmp_path, expect=0, stderr="")
    assert done.stdout.startswith("LlamaForCausalLM, ")
    assert f"efficientbench run llama_first-model --matrix {run / 'matrix.yaml'} init.run={run} " in done.stdout
    run = run.rename(tmp_path / "moved")
    efficientbench("export", "moved", "second", cwd=tmp_path, expect=0)
    names = {path.name for path in first.iterdir()}
    assert names == {path.name for path in second.iterdir()}
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names - {"README.md"})
    assert "| imported from | first model (LlamaForCausalLM) |" in (second / "README.md").read_text()
    assert evaluated(run, tmp_path) == pytest.approx(evaluated(shutil.copytree(base, tmp_path / "base"), tmp_path))

    words = ("run", "llama_first-model", "--matrix", str(run / "matrix.yaml"), *NOT_SHAPES, f"output={tmp_path}")
    given = (f"init.run={run}", f"data.tokenizer={run / 'tokenizer'}", f"data.cache={cache}", "parallel.tp=2")
    efficientbench(*words, *given, "training.learning_rate=1e-30", "training.min_learning_rate=0", expect=0)
    trained = tmp_path / "llama_first-model"
    # The weights of the imported model, which did not move, have the loss that the first run recorded.
    assert record(trained)["validation_loss"] == pytest.approx(record(base)["validation_loss"], rel=1e-5)
    assert record(trained)["config"]["init"]["step"] == 0
    assert len(losses(trained)) == 6
    before, after = (read_weights(TrainedRun.read(each).checkpoint()[0]) for each in (run, trained))
    assert all(torch.equal(after[name], before[name]) for name in before)
