"""Bundles on disk: what is absent is named, and what is damaged is refused by its place."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
from support.core_bundle import write_bundle

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.evaluation.core.bundle import read_bundle
from efficientbench.evaluation.core.task import prompts


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_bundle(tmp_path, ("copa", "jeopardy", "winogrande"))
    return tmp_path


def test_rows_are_shuffled_limited_and_given_shots_as_in_the_reference(bundle: Path) -> None:
    found = read_bundle(bundle, 12)
    assert list(found.tasks) == ["jeopardy", "copa", "winogrande"]
    assert len(found.absent) == 19
    assert found.baselines_sha256 == hashlib.sha256((bundle / "eval_meta_data.csv").read_bytes()).hexdigest()
    path = bundle / "eval_data" / "language_modeling" / "jeopardy.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    random.Random(1337).shuffle(rows)
    task = found.tasks["jeopardy"]
    assert task.rows == rows[:12]
    assert task.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    others = [each for each in range(12) if each != 4]
    assert task.examples(4) == [rows[each] for each in random.Random(1238).sample(others, 10)]
    question, whole = prompts(task, 4)
    assert question.endswith(f"\n\n{rows[4]['context'].strip()}\nAnswer:")
    assert whole == f"{question} {rows[4]['continuation']}"


def test_missing_files_are_named(bundle: Path) -> None:
    (bundle / "eval_data" / "multiple_choice" / "copa.jsonl").unlink()
    lines = (bundle / "eval_meta_data.csv").read_text().splitlines(keepends=True)
    (bundle / "eval_meta_data.csv").write_text("".join(line for line in lines if not line.startswith("winogrande")))
    absent = read_bundle(bundle, None).absent
    assert absent["copa"] == "eval_data/multiple_choice/copa.jsonl is absent"
    assert absent["winogrande"] == "eval_meta_data.csv has no random baseline for this task"
    assert absent["squad"] == "core.yaml does not list it"


def test_a_folder_that_is_no_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"core\.yaml is missing: --data names the evaluation bundle"):
        read_bundle(tmp_path / "none", None)
    with pytest.raises(ConfigError, match="jeopardy has 5 rows by --limit and needs 11 .10 shots.*--limit 11"):
        read_bundle(bundle, 5)
    (bundle / "eval_meta_data.csv").unlink()
    with pytest.raises(ConfigError, match="eval_meta_data.csv with the random baselines is missing"):
        read_bundle(bundle, None)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"query": "a", "choices": ["b"]}', "KeyError: 'gold'"),
        ('{"query": "a", "choices": ["b"], "gold": 1}', "gold is 1, of 1 choices"),
        ('{"query": 3, "choices": ["b"], "gold": 0}', "query is no str"),
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
    ],
)
def test_a_damaged_row_is_named_by_its_line(bundle: Path, row: str, problem: str) -> None:
    path = bundle / "eval_data" / "multiple_choice" / "copa.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[6] = row
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=rf"copa\.jsonl:7: it is no row of a multiple_choice task.*{problem}"):
        read_bundle(bundle, None)


def test_a_broken_list_is_refused(bundle: Path) -> None:
    (bundle / "core.yaml").write_text("icl_tasks: [3]")
    with pytest.raises(DataError, match=r"core\.yaml: it is no list of tasks"):
        read_bundle(bundle, None)
    write_bundle(bundle, ("copa",))
    text = (bundle / "core.yaml").read_text()
    (bundle / "core.yaml").write_text(text.replace("multiple_choice\n", "riddle\n"))
    with pytest.raises(DataError, match="copa: icl_task_type 'riddle' is unknown"):
        read_bundle(bundle, None)
    write_bundle(bundle, ("copa",))
    (bundle / "core.yaml").write_text((bundle / "core.yaml").read_text().replace("dataset_uri", "data"))
    with pytest.raises(DataError, match=r"core\.yaml, copa: dataset_uri is missing"):
        read_bundle(bundle, None)


@pytest.mark.parametrize("place", ["/etc/passwd", "../../copa.jsonl"])
def test_rows_that_lie_outside_the_bundle_are_refused(bundle: Path, place: str) -> None:
    write_bundle(bundle, ("copa",))
    text = (bundle / "core.yaml").read_text()
    (bundle / "core.yaml").write_text(text.replace("multiple_choice/copa.jsonl", place))
    with pytest.raises(DataError, match=r"core\.yaml, copa: dataset_uri .* leads out of eval_data/"):
        read_bundle(bundle, None)


@pytest.mark.parametrize("baseline", ["100", "-1", "nan", "half", "5\r0"])
def test_an_invalid_random_baseline_is_refused(bundle: Path, baseline: str) -> None:
    path = bundle / "eval_meta_data.csv"
    path.write_text(path.read_text().replace("copa,x,50", f"copa,x,{baseline}"))
    with pytest.raises(DataError, match=r"eval_meta_data\.csv: it has no random baselines"):
        read_bundle(bundle, None)


def test_an_error_about_too_few_rows_does_not_blame_the_limit(bundle: Path) -> None:
    path = bundle / "eval_data" / "language_modeling" / "jeopardy.jsonl"
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:7]), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^core: jeopardy has 7 rows and needs 11 \(10 shots and one question\): .*jeopardy\.jsonl$"
    ):
        read_bundle(bundle, 50)
