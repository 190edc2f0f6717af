"""`efficientbench evaluate` on several ranks: what one rank finds, item by item."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.chat_rows import write_chat_tasks
from support.command_line import TINY, Finished, efficientbench
from support.core_bundle import write_bundle

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.parallel import ParallelConfig
from efficientbench.generation.on_ranks import check_shared

TASKS = ("core", "loss", "position_loss")
CHAT = ("mmlu", "gsm8k", "humaneval")


def items(folder: Path, task: str) -> dict[str, dict[str, Any]]:
    """The items of a task by their names, each of which has one line."""
    lines = [json.loads(line) for line in (folder / "evaluation" / f"{task}.jsonl").read_text().splitlines()[1:]]
    found = {line["item"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def summary(folder: Path, task: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "evaluation" / f"{task}.json").read_text())
    return content


def alike(one: Path, other: Path, task: str) -> None:
    """Both have the same items, with losses to 1e-5 and the same verdicts, and the same figures of them."""
    ours, theirs = items(one, task), items(other, task)
    assert ours.keys() == theirs.keys()
    for name, line in ours.items():
        assert line["prompt_sha256"] == theirs[name]["prompt_sha256"]
        assert (line["right"], line["answer"]) == (theirs[name]["right"], theirs[name]["answer"])
        assert line["losses"] == pytest.approx(theirs[name]["losses"], abs=1e-5)
    assert summary(one, task)["figures"] == pytest.approx(summary(other, task)["figures"], abs=1e-5)


@pytest.mark.proof
def test_several_ranks_score_as_one_does(train: Callable[..., Finished], tmp_path: Path) -> None:
    run = train("parallel.tp=2", "model.vocab_size=1025").folder
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        shutil.copytree(run, folder)
    write_bundle(tmp_path / "bundle", ("jeopardy", "copa", "winogrande", "agi_eval_lsat_ar"))
    asked = ("--tasks", ",".join(TASKS), "--data", str(tmp_path / "bundle"), "--batch-tokens", "400")
    efficientbench("evaluate", str(alone), *asked, expect=0)
    shown = efficientbench("evaluate", str(together), *asked, "--tp", "2", "--dp", "2", expect=0)
    for task in TASKS:
        alike(alone, together, task)
        found = summary(together, task)
        assert (found["tp"], found["dp"], found["computed_items"]) == (2, 2, found["items"])
        lines = [line for line in shown.stdout.splitlines() if line.startswith(f"{task}: ")]
        assert len(lines) == len(found["figures"])
    # Replicas alone go on with what another layout has left.
    path = together / "evaluation" / "core.jsonl"
    kept = path.read_text().splitlines(keepends=True)[:20]
    path.write_text("".join(kept) + '{"item": "torn')
    again = efficientbench("evaluate", str(together), *asked, "--dp", "2", expect=0)
    assert "core: 19 of 56 items are there" in again.stdout
    assert path.read_text().splitlines(keepends=True)[:20] == kept
    alike(alone, together, "core")
    assert summary(together, "core")["computed_items"] == 56 - 19


@pytest.mark.proof
def test_expert_parallel_ranks_score_as_one_does(cache: str, tmp_path: Path) -> None:
    words = (f"output={tmp_path}", f"data.cache={cache}", *TINY, "parallel.dp=2", "parallel.ep=2")
    efficientbench("run", "moe_1.5Bx8", "--smoke", *words, expect=0)
    alone, together = tmp_path / "alone", tmp_path / "moe_1.5Bx8_smoke"
    shutil.copytree(together, alone)
    write_bundle(tmp_path / "bundle", ("jeopardy", "copa"))
    asked = ("--tasks", ",".join(TASKS), "--data", str(tmp_path / "bundle"), "--batch-tokens", "400")
    efficientbench("evaluate", str(alone), *asked, expect=0)
    efficientbench("evaluate", str(together), *asked, "--tp", "2", "--dp", "2", expect=0)
    for task in TASKS:
        alike(alone, together, task)
        assert (summary(together, task)["tp"], summary(together, task)["dp"]) == (2, 2)


@pytest.mark.proof
def test_several_ranks_write_the_answers_of_one(chat_run: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        shutil.copytree(chat_run, folder)
    # Five items for two replicas, of which one has a batch more.
    data = write_chat_tasks(tmp_path / "data", CHAT, 5)
    words = ("--tasks", ",".join(CHAT), "--data", str(data), "--allow-code", "--batch-tokens", "10")
    sampled = ("--samples", "2", "--temperature", "1.0", "--max-new-tokens", "6")
    efficientbench("evaluate", str(alone), *words, *sampled, expect=0)
    efficientbench("evaluate", str(together), *words, *sampled, "--tp", "2", "--dp", "2", expect=0)
    for task in CHAT:
        alike(alone, together, task)
        found = summary(together, task)
        assert (found["tp"], found["dp"], found["computed_items"]) == (2, 2, 5)
        others = items(together, task)
        for name, line in items(alone, task).items():
            for part in ("samples", "scores", "programs"):
                assert line.get(part) == others[name].get(part)
    assert items(together, "gsm8k")["row/0"]["samples"] != items(together, "gsm8k")["row/1"]["samples"]


def test_layouts_that_cannot_be_evaluated_are_refused() -> None:
    gqa, moe = resolve("gqa_1.5B"), resolve("moe_1.5Bx8")
    check_shared(gqa, ParallelConfig(tp=2, dp=3), 1, oversubscribe=True)
    check_shared(moe, ParallelConfig(tp=2, dp=5), 1, oversubscribe=True)
    with pytest.raises(ConfigError, match=r"tp: 5 does not divide the 12 heads"):
        check_shared(gqa, ParallelConfig(tp=5, dp=1), 8, oversubscribe=False)
    with pytest.raises(ConfigError, match="= 8 ranks, but there are 4 devices"):
        check_shared(gqa, ParallelConfig(tp=2, dp=4), 4, oversubscribe=False)


def test_lm_eval_is_refused_on_several_ranks(tmp_path: Path) -> None:
    done = efficientbench("evaluate", str(tmp_path), "--lm-eval", "hellaswag", "--dp", "2", expect=2)
    assert "lm-eval asks one process" in done.stderr


def test_items_of_lm_eval_are_not_searched_in_the_training_text(tmp_path: Path) -> None:
    done = efficientbench("evaluate", str(tmp_path), "--lm-eval", "hellaswag", "--contamination", expect=2)
    assert "items of lm-eval's tasks are not searched" in done.stderr
