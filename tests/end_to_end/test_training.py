"""Runs that differ in dtype, layout and text, through the command line."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import ROOT, Finished, efficientbench, environment, losses, record

from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer
from efficientbench.data_tools.tokens.manifest import load_corpus
from efficientbench.devices.cpu import CPU

pytestmark = pytest.mark.proof

Train = Callable[..., Finished]


def trained(run: Finished) -> Path:
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    assert run.done.stderr == ""
    return run.folder


def test_a_run_trains_in_bf16(train: Train) -> None:
    # Far enough for the loss to fall by more than what one batch differs from the next.
    run = train("training.dtype=bf16", "training.steps=30", "training.learning_rate=1e-2")
    folder = trained(run)
    # Told before the run and kept with it, where this machine's processor computes so only slowly.
    warning, content = CPU().dtype_warning("bf16"), record(folder)
    assert (content["dtype"], content["environment"]["dtype_warning"]) == ("bf16", warning)
    assert re.findall(r"^warning: (.*)$", run.done.stdout, re.MULTILINE) == ([warning] if warning else [])
    assert losses(folder)[-1] < losses(folder)[0] - 0.1


@pytest.mark.parametrize("layout", ["parallel.tp=2", "parallel.dp=2"])
def test_two_ranks_train_as_one_does(train: Train, layout: str) -> None:
    one, two = trained(train()), trained(train(layout))
    assert losses(two) == pytest.approx(losses(one), abs=1e-4)
    first, second = record(one), record(two)
    assert second["validation_loss"] == pytest.approx(first["validation_loss"], abs=1e-4)
    # The host is one device, however many ranks it carries, and its memory is that of both.
    assert (second["tp"] * second["dp"], second["devices"], second["tokens"]) == (2, 1, first["tokens"])
    assert 1.2 * first["amu_gb"] < second["amu_gb"] < 3 * first["amu_gb"]
    assert second["amu_gb"] <= second["peak_memory_device_bytes"] / 1e9 * 1.01
    assert sorted(path.name for path in (two / "log").iterdir()) == ["rank_0.log", "rank_1.log", "rank_1.out"]


NATIVE_THREAD = """
import os, sys, threading, time
def in_native_code():
    while "torch.distributed" not in sys.modules or (group := sys.modules["torch.distributed"].group.WORLD) is None:
        time.sleep(0.1)
    while True:
        group._get_sequence_number_for_group()
if "RANK" in os.environ:
    threading.Thread(target=in_native_code, daemon=True).start()
"""


def test_a_run_ends_cleanly_with_a_thread_in_native_code(tiny: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """A late thread of the collectives' backend would abort the process at the interpreter's normal end."""
    (tmp_path / "sitecustomize.py").write_text(NATIVE_THREAD)
    efficientbench(*tiny, expect=0, stderr="", PYTHONPATH=str(tmp_path))
    assert record(folder)["status"] == "completed"


def test_fp16_trains_on_a_text_file(train: Train, shared_data: Path) -> None:
    text = shared_data / "fineweb_edu" / "fineweb_sample.txt"
    folder = trained(train("training.dtype=fp16", "training.steps=40", f"data.path={text}"))
    content, found = record(folder), losses(folder)
    assert (content["dtype"], content["bits_per_byte"] > 0) == ("fp16", True)
    assert all(math.isfinite(loss) for loss in found)
    assert sum(found[-5:]) < sum(found[:5])


def test_a_given_tokenizer_is_used_on_jsonl(train: Train, shared_data: Path) -> None:
    text = shared_data / "c4" / "c4_demo.jsonl"
    tokenizer = shared_data / "qwen2_tokenizer"
    run = train("--data", str(text), "--tokenizer", str(tokenizer), "model.vocab_size=151936", "model.hidden_size=24")
    content = record(trained(run))
    # A uniform guess over the vocabulary.
    assert content["validation_loss"] == pytest.approx(math.log(151_936), abs=0.3)
    assert content["perplexity"] == pytest.approx(math.exp(content["validation_loss"]))
    # English has four to five bytes a token in this vocabulary.
    assert 3 < content["validation_loss"] / math.log(2) / content["bits_per_byte"] < 6
    assert "300 documents" in run.done.stdout


def test_a_blend_of_tokens_and_a_folder_of_parquet_trains(train: Train, tmp_path: Path) -> None:
    """The tokens come from the command line's `tokenize`; the folder is tokenized by the run, with their tokenizer."""
    texts = [f"text number {number}: " + " ".join(str(number * step) for step in range(80)) for number in range(120)]
    train_tokenizer(texts, 300, tmp_path / "bpe")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = [sys.executable, "-m", "data_tools", "tokenize", "a.jsonl", "--output", "a", "--tokenizer", "bpe"]
    subprocess.run(command, cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), check=True, capture_output=True)
    (tmp_path / "b").mkdir()
    pq.write_table(pa.table({"text": [text[::-1] for text in texts]}), tmp_path / "b" / "b.parquet")
    blend = f"[3,{tmp_path / 'a'},1,{tmp_path / 'b'}]"
    run = train("--data", blend, "--tokenizer", str(tmp_path / "bpe"))
    tokens, parquet = record(trained(run))["data"]
    assert parquet["fingerprint"] != tokens["fingerprint"] == load_corpus(tmp_path / "a.manifest.json").fingerprint
    same = {"documents": 120, "verified": "whole", "tokenizer_fingerprint": tokens["tokenizer_fingerprint"]}
    assert tokens.items() >= {"weight": 0.75, **same}.items()
    assert parquet.items() >= {"weight": 0.25, "source": str(tmp_path / "b"), **same}.items()
    assert "data: 0.75 of the samples: a.jsonl, 120 documents" in run.done.stdout
    assert losses(run.folder)[-1] < losses(run.folder)[0]
