"""The first thing that a user does: the script of a named run, with --smoke."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.command_line import Finished, efficientbench, losses, record, steps
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from efficientbench.config.load import resolve
from efficientbench.costs.model import count_parameters
from efficientbench.metrics.records.figures import Metrics
from efficientbench.metrics.report.sections.rank_table import PARTS
from efficientbench.running.trained import TrainedRun
from efficientbench.training.checkpoints.manifest import checkpoint_folder

NAMES = [
    "run",
    "variant",
    "size",
    "smoke",
    "seed",
    "parameters",
    "parameters_active",
    "flops_per_token",
    "devices",
    "device_name",
    "dtype",
    "seq_len",
    "micro_batch_size",
    "global_batch_size",
    "tp",
    "pp",
    "dp",
    "ep",
    "cp",
    "tokens",
    "steps_measured",
    "amu_gb",
    "amu_fraction",
    "pcu",
    "al_s",
    "al_s_p50",
    "al_s_p90",
    "al_s_p99",
    "al_s_ci_low",
    "al_s_ci_high",
    "tt_tokens_per_param_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "aec_w",
    "power_w_sum",
    "energy_j",
    "energy_j_per_token",
    "energy_scope",
    "mfu",
    "mfu_full_square",
    "hfu",
    "peak_memory_allocated_bytes",
    "peak_memory_reserved_bytes",
    "peak_memory_device_bytes",
    "train_loss",
    "validation_loss",
    "perplexity",
    "bits_per_byte",
]
"""The names that the record and report.csv have settled on."""


@pytest.fixture(scope="module")
def folder(smoke_run: Finished) -> Path:
    assert smoke_run.done.returncode == 0, smoke_run.done.stdout + smoke_run.done.stderr
    return smoke_run.folder


def test_a_copied_run_folder_is_self_contained(folder: Path, tmp_path: Path) -> None:
    """A copy of the folder in another place names its own tokenizer and weights."""
    for name in ("config.json", "tokenizer", "checkpoint"):
        (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, tmp_path / name)
    trained = TrainedRun.read(tmp_path)
    assert trained.tokenizer().fingerprint == record(folder)["data"][0]["tokenizer_fingerprint"]
    assert trained.checkpoint()[0] == checkpoint_folder(tmp_path, 20)
    assert all(manifest.is_absolute() for manifest in trained.job.corpora)


def test_the_output_ends_with_a_table_and_the_paths(smoke_run: Finished, folder: Path) -> None:
    text = smoke_run.done.stdout
    # That of torch's build for CUDA where a machine has nvcc and no GPU.
    told = [line for line in smoke_run.done.stderr.splitlines() if "No CUDA runtime is found" not in line]
    assert told == []
    config = resolve("gqa_1.5B", smoke=True)
    size = f"{count_parameters(config.model).total:,} parameters"
    assert f"gqa_1.5B_smoke: {size}, 20 steps of 512 tokens, {config.training.dtype}\n" in text
    assert "data: embedded sample" in text
    assert re.search(r"step 1/20 \| loss .*step 20/20 \| loss .*\nrun  .*gqa_1\.5B \(smoke\)", text, re.DOTALL)
    table, _, paths = text[text.index("\nrun  ") :].partition("record  ")
    assert max(map(len, table.splitlines())) <= 80
    for shown in ("record.json", "steps.jsonl", "log"):
        assert ((folder / shown).exists(), f"gqa_1.5B_smoke/{shown}\n" in paths) == (True, True)


def test_a_smoke_run_lowers_its_loss(folder: Path) -> None:
    uniform_guess = math.log(resolve("gqa_1.5B", smoke=True).model.vocab_size)
    found = losses(folder)
    # Tied to the output and multiplied, the embedding lets an untrained model guess that each token comes again.
    assert found[0] > uniform_guess
    assert found[-1] < uniform_guess - 0.3


def test_the_record_is_complete(folder: Path) -> None:
    content = record(folder)
    assert [name for name in NAMES if name not in content] == []
    absent = [name for name in Metrics.model_fields if content[name] is None]
    assert [name for name in absent if not content["unavailable"].get(name)] == []
    expected = {"status": "completed", "run": "gqa_1.5B", "smoke": True, "steps_measured": 15, "tokens": 15 * 512}
    parameters = count_parameters(resolve("gqa_1.5B", smoke=True).model).total
    assert content.items() >= {**expected, "parameters": parameters}.items()
    assert content["tokens_per_s"] * content["window_s"] == pytest.approx(content["tokens"], rel=0.05)
    assert content["unavailable"]["al_s_ci_low"] == "a 95 % interval needs 30 measured steps; this run has 15"
    for name, least, most in (("amu_gb", 0.1, 4.0), ("pcu", 0.0, 1.05)):
        # Where other programs keep the sampler from its readings for long, the figure is absent with that reason.
        sparse = content[name] is None and content["unavailable"][name].startswith("readings cover ")
        assert sparse or least < content[name] <= most
    assert content["environment"]["packages"]["megatron-core"]
    assert "embedding.word_embeddings.weight" in content["decayed_parameters"]
    assert not [name for name in content["decayed_parameters"] if "norm" in name or "bias" in name]
    assert [(group["role"], group["optimizer"]) for group in content["parameter_groups"]] == [
        ("matrices", "adamw"),
        ("embedding", "adamw"),
        ("others", "adamw"),
    ]
    assert content["config"] == json.loads((folder / "config.json").read_text(encoding="utf-8"))["config"]


def test_every_step_is_logged(folder: Path) -> None:
    lines = steps(folder)
    trained = [(line["step"], line["measured"], line["tokens_total"]) for line in lines if line["kind"] == "step"]
    assert trained == [(step, step > 5, step * 512) for step in range(1, 21)]
    validations = [line for line in lines if line["kind"] == "evaluation"]
    assert [line["step"] for line in validations] == [10, 20]
    assert validations[-1]["loss"] == record(folder)["validation_loss"]


def test_tensorboard_reads_the_scalars(folder: Path) -> None:
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    tags = {"train/loss", "train/learning_rate", "efficiency/step_time_s", "validation/bits_per_byte"}
    assert tags <= set(events.Tags()["scalars"])
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses(folder), rel=1e-6)


def test_each_rank_has_its_log(folder: Path) -> None:
    text = (folder / "log" / "rank_0.log").read_text(encoding="utf-8")
    assert all(f"step {step}/20 | " in text for step in range(1, 21))
    assert "Traceback" not in text


def test_report_writes_a_row(folder: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    shutil.copytree(folder, suite / folder.name)
    done = efficientbench("report", str(suite), expect=0, stderr="")
    assert re.search(r"gqa_1\.5B \(smoke\).*report\.csv\n$", done.stdout, re.DOTALL)
    (row,) = csv.DictReader((suite / "report.csv").read_text(encoding="utf-8").splitlines())
    assert [name for name in NAMES if name not in row] == []
    found = row["run"], float(row["validation_loss"])
    assert found == ("gqa_1.5B", pytest.approx(record(folder)["validation_loss"]))


def test_the_output_says_how_much_text_was_trained_on(smoke_run: Finished, folder: Path) -> None:
    found = record(folder)
    (source,) = found["data"]
    training_tokens = found["unique_tokens"] if found["epochs"] >= 1 else found["tokens_trained"] / found["epochs"]
    # Documents are split, not tokens, and each Python has documents of other lengths.
    assert training_tokens == pytest.approx(0.99 * source["tokens"], rel=0.05)
    assert found["tokens_trained"] == max(line.get("tokens_total", 0) for line in steps(folder))
    assert found["tokens_per_parameter"] == found["tokens_trained"] / found["parameters"] < 1
    assert 0 < found["unigram_entropy"] < math.log(1024)
    assert found["attention_across_documents"] is True
    reason = f"{found['tokens_per_parameter']:.2g} tokens per parameter are fewer than 1"
    assert f"speed only: {reason}" in smoke_run.done.stdout
    assert f"Speed only, without a comparison of losses: gqa_1.5B: {reason}." in " ".join(smoke_run.done.stdout.split())


def test_the_parts_of_wall_time_add_up(folder: Path) -> None:
    found = record(folder)
    parts = [found[part] for part in PARTS]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(found["wall_s"])
    assert found["wall_s"] == pytest.approx(found["duration_s"], abs=0.1)
    assert found["goodput"] == found["productive_s"] / found["wall_s"]
    # It validates twice and saves its end.
    assert min(found["start_s"], found["evaluation_s"], found["checkpoints_s"], found["data_wait_s"]) > 0
    assert found["restarts_s"] == 0


def test_the_record_names_the_validation_text(folder: Path) -> None:
    found = record(folder)
    assert len(found["validation_sequence_losses"]) >= 16
    assert re.fullmatch("[0-9a-f]{64}", found["validation_text"])
    # Documents differ in length: their plain mean is near the mean over tokens.
    assert np.mean(found["validation_sequence_losses"]) == pytest.approx(found["validation_loss"], rel=0.1)
    assert found["data"][0]["duplicates"] >= 0
    assert max(line.get("tokens", 0) for line in steps(folder) if line["kind"] == "evaluation") == 3_072
