"""What lm-eval cannot load, or would run without a sandbox, is told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from efficientbench.basics.errors import ConfigError

pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
pytestmark = pytest.mark.proof

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}, cache_dir: {cache}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["a", "b"]
doc_to_target: gold
unsafe_code: {unsafe}
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
GROUP = "{group: made_group, task: [made_first]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{number}?", "gold": 0}) + "\n" for number in range(3)))
    for name, path, unsafe in (
        ("made_first", rows, "false"),
        ("made_unsafe", rows, "true"),
        ("made_missing", tmp_path / "none.jsonl", "false"),
    ):
        text = TASK.format(name=name, rows=path, cache=tmp_path / "cache", unsafe=unsafe)
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "made_group.yaml").write_text(GROUP)
    return tmp_path


def test_tasks_and_groups_are_loaded(folder: Path) -> None:
    from efficientbench.evaluation.lm_eval.tasks import Tasks

    manager = Tasks(include_path=str(folder), include_defaults=False)
    assert {"made_first", "made_group"} <= set(manager.all_tasks)
    assert list(manager.load(["made_first"])["tasks"]) == ["made_first"]
    assert list(manager.load(["made_group"])["groups"]) == ["made_group"]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["made_missing"], "--lm-eval: a task cannot be loaded: FileNotFoundError: .*none.jsonl"),
        (["made_first", "made_group"], "--lm-eval: a task cannot be loaded: ValueError: Duplicate task 'made_first'"),
        (["made_unsafe"], "--lm-eval: made_unsafe would run the model's programs without a sandbox"),
    ],
)
def test_tasks_that_cannot_be_run_are_refused(names: list[str], reason: str, folder: Path) -> None:
    from efficientbench.evaluation.lm_eval.tasks import Tasks

    with pytest.raises(ConfigError, match=reason):
        Tasks(include_path=str(folder), include_defaults=False).load(names)


def test_a_misspelt_task_gets_the_nearest_name(folder: Path) -> None:
    from efficientbench.evaluation.lm_eval.tasks import Tasks

    manager = Tasks(include_path=str(folder), include_defaults=False)
    manager.check(["made_first", "made_group"])
    with pytest.raises(ConfigError, match=r"has no task 'made_frst'; do you mean made_first\? `lm-eval ls tasks`"):
        manager.check(["made_first", "made_frst"])
