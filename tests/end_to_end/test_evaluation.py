"""`efficientbench evaluate` on the folders of finished runs."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Finished, efficientbench, record, started, until
from support.core_bundle import write_bundle
from support.validation import validation_documents

FEW = ("jeopardy", "copa", "winogrande", "agi_eval_lsat_ar")


def results(folder: Path, task: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the lines of items of a task."""
    lines = (folder / "evaluation" / f"{task}.jsonl").read_text().splitlines()
    return json.loads((folder / "evaluation" / f"{task}.json").read_text()), [json.loads(line) for line in lines[1:]]


@pytest.mark.proof
def test_the_loss_is_that_of_the_runs_own_validation(train: Callable[..., Finished], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    own = record(folder)
    done = efficientbench("evaluate", str(folder), "--batch-tokens", "200", expect=0)
    summary, items = results(folder, "loss")
    assert math.isclose(summary["figures"]["loss"], own["validation_loss"], rel_tol=1e-6)
    assert math.isclose(summary["figures"]["bits_per_byte"], own["bits_per_byte"], rel_tol=1e-6)
    assert f"loss: loss {own['validation_loss']:.4f}"[:-1] in done.stdout
    documents = validation_documents(folder)
    assert [line["tokens"] for line in sorted(items, key=lambda line: int(line["item"][9:]))] == [
        len(document) - 1 for document in documents
    ]
    # Where it was killed it goes on: the items that stay are not computed again.
    path = folder / "evaluation" / "loss.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    changed = json.loads(lines[1])
    changed["loss_sum"] += 1000
    path.write_text("".join([lines[0], json.dumps(changed) + "\n", lines[2][:40]]))
    again = efficientbench("evaluate", str(folder), "--batch-tokens", "200", expect=0)
    assert f"loss: 1 of {len(items)} items are there" in again.stdout
    tokens = sum(len(document) - 1 for document in documents)
    assert math.isclose(
        results(folder, "loss")[0]["figures"]["loss"], own["validation_loss"] + 1000 / tokens, rel_tol=1e-6
    )


@pytest.mark.proof
def test_the_loss_on_a_text_counts_its_bytes(train: Callable[..., Finished], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    texts = ["def main() -> None:", "größer 漢字", "x", "import os\n" * 30]
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    efficientbench("evaluate", str(folder), "--text", str(path), expect=0)
    summary, items = results(folder, "loss")
    by_name = {line["item"]: line for line in items}
    # The first token of each is no target; the end of a document has no bytes.
    assert by_name["document/2"]["utf8_bytes"] == 0
    assert by_name["document/2"]["tokens"] == 1
    assert sum(line["tokens"] for line in items) == summary["parts"]["tokens"]
    limited = efficientbench("evaluate", str(folder), "--text", str(path), "--limit", "2", expect=0)
    assert "begun anew" in limited.stdout
    assert results(folder, "loss")[0]["items"] == 2
    refused = efficientbench("evaluate", str(folder), "--tasks", "cor,loss", expect=2)
    assert "there is no task 'cor'" in refused.stderr


@pytest.mark.proof
def test_core_goes_on_where_it_was_killed(train: Callable[..., Finished], tmp_path: Path) -> None:
    run = train("parallel.tp=2", "model.vocab_size=1025").folder
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(run, first)
    write_bundle(tmp_path / "data" / "core", FEW)
    words = ("evaluate", str(first), "--tasks", "core,loss", "--data", str(tmp_path / "data"), "--batch-tokens", "500")
    with started(*words) as evaluation:
        path = first / "evaluation" / "core.jsonl"
        until(lambda: path.exists() and len(path.read_text().splitlines()) > 8, "8 items")
        evaluation.kill()
    before = path.read_text().splitlines()[:-1]
    done = efficientbench(*words, expect=0)
    assert "items are there" in done.stdout
    assert f"core: core n/a: {22 - len(FEW)} of its 22 tasks are not at hand" in done.stdout
    assert path.read_text().splitlines()[: len(before)] == before
    summary, items = results(first, "core")
    assert len(items) == summary["items"] == 14 * len(FEW)
    assert len({line["item"] for line in items}) == len(items)
    for name in FEW:
        right = [line["right"] for line in items if line["item"].startswith(f"{name}/")]
        assert summary["figures"][name] == sum(right) / 14
    assert summary["figures"]["core"] is None
    checksum = hashlib.sha256((tmp_path / "data" / "core" / "eval_meta_data.csv").read_bytes()).hexdigest()
    assert summary["settings"]["eval_meta_data_sha256"] == checksum
    # Another run of the same model: paired by item, nothing differs.
    shutil.copytree(first, second)
    shown = efficientbench("compare", str(first), str(second), expect=0, COLUMNS="160").stdout
    assert "paired by item" in shown
    assert shown.count("no difference shown") == len(FEW) + 1
