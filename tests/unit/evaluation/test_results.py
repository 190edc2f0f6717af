"""Results on disk: a killed evaluation resumes, another one starts anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from efficientbench.basics.errors import ConfigError, EvaluationError, MetricsError
from efficientbench.evaluation.evaluate import memory_errors_explained
from efficientbench.evaluation.loss import read_text
from efficientbench.evaluation.registry import check_names
from efficientbench.evaluation.results import ResultFile, summary_of, write_summary
from efficientbench.evaluation.task import Item, ItemResult, Options, Summary

HEADER = {"task": "made", "step": 7, "settings": {"limit": 3, "depths": (0.0, 0.5)}}
RESULTS = [
    ItemResult("a/1", "11", "yes", True, (0.5, None), {"gold": 0}),
    ItemResult("a/2", "22", None, None),
    ItemResult("a/3", "33", 1, False, (2.0, 1.0)),
]


def test_a_torn_line_is_evaluated_again(tmp_path: Path) -> None:
    path = tmp_path / "evaluation" / "made.jsonl"
    with ResultFile(path, HEADER) as file:
        file.append(RESULTS[:2])
        file.append(RESULTS[2:])
    whole = path.read_bytes()
    assert len(whole.splitlines()) == 4
    for torn in (whole[:-1], whole[:-30], whole[: whole.index(b"a/3") - 5]):
        path.write_bytes(torn)
        with ResultFile(path, HEADER) as file:
            assert file.replaced is None
            assert list(file.results.values()) == RESULTS[:2]
            file.append(RESULTS[2:])
            assert list(file.results.values()) == RESULTS
        assert path.read_bytes() == whole
    path.write_bytes(whole[:20])
    with ResultFile(path, HEADER) as file:
        assert file.results == {}
    settings = {"limit": 3, "depths": [0.0, 0.5]}
    assert json.loads(path.read_text()) == {"format": 1, **HEADER, "settings": settings}


class Tokens:
    """A task that adds up what its results hold."""

    name = "made"
    settings: Mapping[str, Any] = {}

    def items(self) -> Sequence[Item]:
        return [Item("a/1"), Item("a/2")]

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        yield [ItemResult(item.name, "11", None, None, None, {"tokens": 3}) for item in items]

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        return Summary({"tokens": sum(result.details["tokens"] for result in results.values())})


@pytest.mark.parametrize("changed", ['"tokens": "3"', '"other": 3', '"tokens": 1e999'])
def test_a_damaged_result_is_reported_as_damaged(changed: str, tmp_path: Path) -> None:
    path, task = tmp_path / "made.jsonl", Tokens()
    with ResultFile(path, HEADER) as file:
        file.append(next(task.score(task.items())))
    assert summary_of(task, file.results, path).figures == {"tokens": 6}
    path.write_text(path.read_text().replace('"tokens": 3', changed, 1))
    with ResultFile(path, HEADER) as file:
        pass
    with pytest.raises(MetricsError, match=r"made\.jsonl: a line is damaged \(.*\); remove the file"):
        summary_of(task, file.results, path)
    # A mistake of the task's own is none of the file.
    with pytest.raises((TypeError, KeyError, ValueError)):
        summary_of(task, file.results, None)


@pytest.mark.parametrize(("field", "value"), [("item", 5), ("item", None), ("right", "yes"), ("losses", 2)])
def test_a_line_of_wrong_types_is_evaluated_again(field: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    with ResultFile(path, HEADER) as file:
        file.append(RESULTS)
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), field: value})
    path.write_text("\n".join(lines) + "\n")
    with ResultFile(path, HEADER) as file:
        assert list(file.results.values()) == RESULTS[:1]


def test_another_checkpoint_or_setting_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    with ResultFile(path, HEADER) as file:
        assert file.replaced is None
        file.append(RESULTS)
    with ResultFile(path, {**HEADER, "step": 8}) as file:
        assert file.results == {}
        assert file.replaced is not None
        assert file.replaced["step"] == 7
        assert file.differences == "step 7 (now 8)"
    settings = {"limit": None, "depths": [0.0, 0.5], "text": "a" * 90}
    with ResultFile(path, {**HEADER, "step": 8, "settings": settings}) as file:
        assert file.differences == f"limit 3 (now none), text none (now {'a' * 80})"
    assert len(path.read_text().splitlines()) == 1


def test_a_second_evaluation_of_one_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    with ResultFile(path, HEADER) as file:
        file.append(RESULTS)
        with pytest.raises(ConfigError, match="another evaluation is writing it"), ResultFile(path, HEADER):
            pass
    assert len(path.read_text().splitlines()) == 4


def test_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    (tmp_path / "made.jsonl").symlink_to(elsewhere)
    with (
        pytest.raises(MetricsError, match=r"made\.jsonl: cannot be written"),
        ResultFile(tmp_path / "made.jsonl", HEADER),
    ):
        pass
    assert elsewhere.read_text() == "kept"


def test_a_summary_gives_the_reason_of_an_absent_figure(tmp_path: Path) -> None:
    write_summary(tmp_path / "made.json", HEADER, 3, Summary({"core": None}, {"core": "no data"}, {"copa": 0.5}))
    found = json.loads((tmp_path / "made.json").read_text())
    assert found["figures"] == {"core": None}
    assert found["unavailable"] == {"core": "no data"}
    assert (found["items"], found["step"], found["parts"]) == (3, 7, {"copa": 0.5})


def test_names_and_folders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task called 'los': did you mean loss"):
        check_names(["los"])
    with pytest.raises(ConfigError, match="hellaswag is one of the 22 tasks of core, and is scored only there"):
        check_names(["loss", "hellaswag"])
    # The chat tasks of these names are others.
    check_names(["arc_easy", "arc_challenge"])
    with pytest.raises(ConfigError, match="none is named"):
        check_names([])
    with pytest.raises(ConfigError, match="mmlu: --data FOLDER is missing"):
        Options(tmp_path).data_folder("mmlu")
    with pytest.raises(ConfigError, match="no such folder"):
        Options(tmp_path, tmp_path / "none").data_folder("mmlu")
    (tmp_path / "mmlu").mkdir()
    assert Options(tmp_path, tmp_path).data_folder("mmlu") == tmp_path / "mmlu"
    assert Options(tmp_path, tmp_path).data_folder("gsm8k") == tmp_path


def test_an_out_of_memory_error_says_what_would_help() -> None:
    wanted = "out of memory: .*; resume with --batch-tokens below 8,192"
    with pytest.raises(EvaluationError, match=wanted), memory_errors_explained(8192):
        np.zeros(1 << 56)
    with pytest.raises(EvaluationError, match="^another$"), memory_errors_explained(8192):
        raise EvaluationError("another")


def test_a_text_without_a_document_says_why(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"messages": []}\n' * 3)
    run: Any = SimpleNamespace(report=lambda what: None)
    told = r"good\.jsonl has no document that can be read \(3 cannot; the first: the key 'text' is missing; keys there:"
    with pytest.raises(ConfigError, match=told):
        read_text(tmp_path / "good.jsonl", run, None)
