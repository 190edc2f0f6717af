"""`efficientbench evaluate` with chat tasks, on the folder of an SFT run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.chat_rows import ROWS
from support.command_line import ROOT, efficientbench
from support.conversation_pairs import row


def summary(folder: Path, task: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "evaluation" / f"{task}.json").read_text())
    return found


@pytest.mark.proof
def test_chat_tasks_and_their_mean_are_evaluated(chat_run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = shutil.copytree(chat_run, tmp_path / "run")
    data = tmp_path / "data"
    data.mkdir()
    for name, one in ROWS.items():
        (data / f"{name}.jsonl").write_text(f"{json.dumps(one)}\n" * 3)
    tasks = "arc_easy,arc_challenge,mmlu,gsm8k,humaneval"
    words = ("evaluate", str(folder), "--data", str(data), "--max-new-tokens", "8", "--limit", "2")
    refused = efficientbench(*words, "--tasks", tasks, expect=2)
    assert "humaneval: its answers are programs: --allow-code runs them here" in refused.stderr
    # Nothing was scored before it was refused.
    assert not (folder / "evaluation").exists()
    done = efficientbench(*words, "--tasks", tasks, "--allow-code", expect=0)
    results = {task: summary(folder, task) for task in tasks.split(",")}
    assert {each["items"] for each in results.values()} == {2}
    accuracies = {task: each["figures"]["accuracy"] for task, each in results.items()}
    centred = [(accuracies[task] - 0.25) / 0.75 for task in ("arc_easy", "arc_challenge", "mmlu")]
    wanted = (sum(centred) + accuracies["gsm8k"] + accuracies["humaneval"]) / 5
    mean = summary(folder, "chat_core")
    assert mean["figures"]["chat_core"] == pytest.approx(wanted)
    assert (mean["items"], mean["settings"]) == (10, {task: each["settings"] for task, each in results.items()})
    shown = EventAccumulator(str(folder / "tensorboard"))
    shown.Reload()
    assert [each.value for each in shown.Scalars("evaluation/chat_core/chat_core")] == [pytest.approx(wanted)]
    assert f"chat_core: chat_core {wanted:.6g}" in done.stdout
    assert results["humaneval"]["parts"]["sandbox_held"]["memory"] is True
    assert results["gsm8k"]["settings"]["calculator"] is True
    # Questions of 13 tokens, most of which are in the training text, and one that is in none.
    asked = [row(number)["messages"][0]["content"] for number in (10, 21, 32, 43, 54)]
    rows = [{**ROWS["mmlu"], "question": question} for question in [*asked, "Which of these four is it?"]]
    (data / "mmlu.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    efficientbench("evaluate", str(folder), "--data", str(data), "--tasks", "mmlu", "--contamination", expect=0)
    found = summary(folder, "mmlu")
    seen = found["parts"]["contamination"]["in_training_text"]
    assert len(seen) >= 2
    assert "row/5" not in seen
    lines = [json.loads(line) for line in (folder / "evaluation" / "mmlu.jsonl").read_text().splitlines()[1:]]
    rest = [line["right"] for line in lines if line["item"] not in seen]
    assert found["figures"]["accuracy_clean"] == sum(rest) / len(rest)
    # A task from outside, with samples.
    outside = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    sampled = ("--tasks", "support.outside_task:Spelling", "--samples", "2", "--temperature", "1")
    words = ("evaluate", str(folder), "--max-new-tokens", "8")
    efficientbench(*words, *sampled, expect=0, **outside)
    spelled = summary(folder, "support.outside_task.Spelling")
    assert spelled["items"] == 5
    assert {"accuracy", "pass_at_1", "pass_at_2"} == spelled["figures"].keys()
    assert len(spelled["settings"]["files_sha256"]) == 1
    refused = efficientbench(*words, *sampled[:4], expect=2, **outside)
    assert "--samples 2: all samples are equal at temperature 0" in refused.stderr
    failed = efficientbench(*words, "--tasks", "support.outside_task:Moving", expect=1, **outside)
    assert "ZeroDivisionError: it clears the screen: \ufffd[2J" in failed.stderr
    refused = efficientbench(*words, "--tasks", "support.outside_task:Missing", expect=2, **outside)
    assert "support.outside_task has no Missing" in refused.stderr
