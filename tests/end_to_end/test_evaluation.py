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
from oracles.validation import validation_documents
from support.command_line import TINY, Finished, efficientbench, losses, record, started, until
from support.core_bundle import write_bundle

from efficientbench.basics.checksum import with_checksum

FEW = ("jeopardy", "copa", "winogrande", "agi_eval_lsat_ar")


def results(folder: Path, task: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the lines of items of a task."""
    lines = (folder / "evaluation" / f"{task}.jsonl").read_text().splitlines()
    return json.loads((folder / "evaluation" / f"{task}.json").read_text()), [json.loads(line) for line in lines[1:]]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.proof
def test_the_evaluated_loss_matches_the_runs_own_validation(train: Callable[..., Finished], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    own = record(folder)
    done = efficientbench("evaluate", str(folder), "--batch-tokens", "200", expect=0)
    summary, items = results(folder, "loss")
    assert math.isclose(summary["figures"]["loss"], own["validation_loss"], rel_tol=1e-6)
    assert summary["device"] == "cpu"
    assert math.isclose(summary["figures"]["bits_per_byte"], own["bits_per_byte"], rel_tol=1e-6)
    assert f"loss: loss {own['validation_loss']:.4f}"[:-1] in done.stdout
    scored = [{"task": "loss", "step": 6, "figures": summary["figures"]}]
    assert record(folder) == with_checksum({**own, "evaluations": scored})
    assert scalars(folder)["evaluation/loss/loss"] == [(6, pytest.approx(own["validation_loss"], rel=1e-6))]
    documents = validation_documents(folder)
    assert [line["tokens"] for line in sorted(items, key=lambda line: int(line["item"][9:]))] == [
        len(document) - 1 for document in documents
    ]
    # Where it was killed it resumes: the items that stay are not computed again.
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
    assert "starting anew" in limited.stdout
    assert results(folder, "loss")[0]["items"] == 2
    refused = efficientbench("evaluate", str(folder), "--tasks", "cor,loss", expect=2)
    assert "there is no task called 'cor'" in refused.stderr


@pytest.mark.proof
def test_a_killed_evaluation_of_core_resumes(train: Callable[..., Finished], tmp_path: Path) -> None:
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
    assert f"core: core n/a: {22 - len(FEW)} of the 22 tasks of CORE are missing" in done.stdout
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
    # The loss by tokens and by bytes.
    assert shown.count("no difference shown") == len(FEW) + 2


TASK = """
task: made_here
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
TEXTS = """
task: made_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{found}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 4, do_sample: false}}
filter_list:
  - {{name: whole, filter: [{{function: take_first}}]}}
  - name: number
    filter:
      - {{function: regex, regex_pattern: "(0x0x0)", fallback: nothing}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


@pytest.mark.proof
def test_a_task_of_lm_eval_runs_from_local_files(train: Callable[..., Finished], tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    folder = tmp_path / "run"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    rows = [{"question": f"import {n}", "choices": ["os", "path and more", "x"], "gold": n % 3} for n in range(12)]
    # What the filter `number` finds where its pattern is not.
    for number, row in enumerate(rows):
        row["found"] = "nothing" if number % 3 == 0 else "x"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "made_here.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"))
    (tmp_path / "made_texts.yaml").write_text(TEXTS.format(file=tmp_path / "rows.jsonl"))
    words = ("evaluate", str(folder), "--lm-eval", "made_here,made_texts", "--data", str(tmp_path), "--limit", "9")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = efficientbench(*words, expect=0, **offline)
    summary, items = results(folder, "lm_eval_made_here")
    assert summary["items"] == len(items) == 9
    assert summary["figures"]["acc"] == sum(line["right"] for line in items) / 9
    assert f"lm_eval_made_here: acc {summary['figures']['acc']:.6g}" in done.stdout
    assert set(summary["figures"]) == {"acc"}
    assert scalars(folder)["evaluation/lm_eval_made_here/acc"] == [(6, pytest.approx(summary["figures"]["acc"]))]
    # Each document once for each filter; a figure of numpy is a figure, and the count of documents is none.
    summary, items = results(folder, "lm_eval_made_texts")
    assert summary["items"] == 9
    assert {line["item"] for line in items} == {f"{n}/{name}" for n in range(9) for name in ("whole", "number")}
    assert set(summary["figures"]) == {"exact_match,whole", "exact_match,number"}
    assert summary["figures"]["exact_match,number"] == pytest.approx(3 / 9)
    assert sum(line["right"] for line in items if line["item"].endswith("/number")) == 3
    assert not (folder / "evaluation" / "loss.json").exists()


@pytest.mark.proof
def test_core_is_scored_while_a_model_is_trained(tmp_path: Path, cache: str) -> None:
    write_bundle(tmp_path / "bundle", FEW)
    words = (f"data.cache={cache}", *TINY, "parallel.dp=2", "checkpoint.interval=3", "model.vocab_size=1025")
    asked = ("evaluation.core_every=3", f"evaluation.core_data={tmp_path / 'bundle'}", "evaluation.core_limit=12")
    done = efficientbench("run", "gqa_1.5B", "--smoke", f"output={tmp_path / 'a'}", *words, *asked, expect=0)
    efficientbench("run", "gqa_1.5B", "--smoke", f"output={tmp_path / 'b'}", *words, expect=0)
    first, second = (tmp_path / name / "gqa_1.5B_smoke" for name in "ab")
    assert losses(first) == losses(second)
    assert "step 3: CORE n/a (18 of the 22 tasks of CORE are missing" in done.stdout
    data = ("--data", str(tmp_path / "bundle"), "--limit", "12", "--step", "3")
    efficientbench("evaluate", str(first), "--tasks", "core", *data, expect=0)
    later, items = results(first, "core")
    path = first / "evaluation" / "training" / "core_00000003.jsonl"
    during = {line["item"]: line for line in map(json.loads, path.read_text().splitlines()[1:])}
    assert len(during) == len(items) == 12 * len(FEW)
    for line in items:
        assert during[line["item"]]["prompt_sha256"] == line["prompt_sha256"]
        both = zip(during[line["item"]]["losses"], line["losses"], strict=True)
        assert all(one == other if other is None else math.isclose(one, other, abs_tol=1e-5) for one, other in both)
    written = json.loads(path.with_suffix(".json").read_text())
    assert dict(scalars(first)["core/copa"])[3] == pytest.approx(written["figures"]["copa"])
    assert written["figures"].keys() == later["figures"].keys()
    assert path.with_name("core_00000006.json").is_file()
    scored = record(first)["training_scores"]
    assert [(each["task"], each["step"]) for each in scored] == [("core", 3), ("core", 6)]
    assert scored[0]["figures"] == written["figures"]
    assert record(second)["training_scores"] == []
