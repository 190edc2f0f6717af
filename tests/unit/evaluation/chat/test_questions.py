"""Which rows are asked, and from where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.evaluation.chat.questions import check_rows, find_examples
from efficientbench.evaluation.task import Options


def write(path: Path, *rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def question(text: str) -> dict[str, str]:
    return {"question": text, "answer": "#### 1"}


def asked(name: str, data: Path) -> list[str]:
    examples = find_examples(name, Options(folder=Path("run"), data=data))
    return [examples[number].messages[0].text for number in range(len(examples))]


@pytest.mark.parametrize(
    ("others", "test"),
    [
        ("gsm8k/train.jsonl", "gsm8k/test.jsonl"),
        ("gsm8k/main/train-00000.jsonl", "gsm8k/main/test-00000.jsonl"),
        ("gsm8k/train/rows.jsonl", "gsm8k/test/rows.jsonl"),
        ("arc.jsonl", "gsm8k.jsonl"),
        ("arc.jsonl", "gsm8k/rows.jsonl"),
    ],
)
def test_the_test_split_is_evaluated(others: str, test: str, tmp_path: Path) -> None:
    write(tmp_path / others, question("not this"))
    write(tmp_path / test, question("one"), question("two"))
    assert asked("gsm8k", tmp_path) == ["one", "two"]


def test_both_tasks_of_arc_may_read_one_file(tmp_path: Path) -> None:
    choices = {"text": ["ice", "fire"], "label": ["A", "B"]}
    write(tmp_path / "arc.jsonl", {"question": "Hot?", "choices": choices, "answerKey": "B"})
    assert "Hot?" in asked("arc_easy", tmp_path)[0]
    write(tmp_path / "arc_easy.jsonl", {"question": "Cold?", "choices": choices, "answerKey": "A"})
    assert "Cold?" in asked("arc_easy", tmp_path)[0]
    assert "Hot?" in asked("arc_challenge", tmp_path)[0]


def test_a_folder_without_the_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mmlu: --data .* has neither a folder mmlu nor files mmlu\.\*"):
        asked("mmlu", tmp_path)
    (tmp_path / "mmlu").mkdir()
    with pytest.raises(DataError, match="holds no file of a known kind"):
        asked("mmlu", tmp_path)


def test_no_task_is_asked_the_items_of_another(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k" / "test.jsonl", question("one"))
    with pytest.raises(ConfigError, match=r"arc_easy: --data .* nor files arc_easy\.\*, arc\.\*$"):
        asked("arc_easy", tmp_path)


@pytest.mark.parametrize(
    ("there", "named"),
    [
        ("train.jsonl", r"train\.jsonl"),
        ("main/validation-00000.jsonl", r"validation-00000\.jsonl"),
        ("train/rows.jsonl", "train"),
    ],
)
def test_another_split_is_no_test(there: str, named: str, tmp_path: Path) -> None:
    write(tmp_path / "gsm8k" / there, question("not this"))
    with pytest.raises(ConfigError, match=rf"gsm8k: --data .* has no split test, only {named}$"):
        asked("gsm8k", tmp_path)


def test_files_without_a_row_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k" / "test.jsonl")
    with pytest.raises(ConfigError, match=r"gsm8k: .*/gsm8k/test\.jsonl has no rows"):
        check_rows("gsm8k", Options(folder=Path("run"), data=tmp_path))


def test_an_external_task_makes_its_rows() -> None:
    examples = find_examples("support.outside_task:Spelling", Options(folder=Path("run")))
    assert examples[0].messages[0].text == "Spell apple."
