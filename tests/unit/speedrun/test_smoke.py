"""A smoke speedrun: what the package carries for it is right, and its runs are small and marked."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from efficientbench.config.load import resolve
from efficientbench.config.matrix import CHAT
from efficientbench.data_tools.chat.calculator import calculate
from efficientbench.data_tools.chat.examples import Examples, open_examples
from efficientbench.data_tools.chat.find_task import find_task
from efficientbench.data_tools.chat.mixture import open_mixture, read_mixture
from efficientbench.data_tools.chat.task import Example
from efficientbench.evaluation.core.bundle import read_bundle
from efficientbench.speedrun.recipe import write_matrix
from efficientbench.speedrun.request import MID, MIXTURES, SAMPLE, SFT, STAGES, Request, keep_choices, kept_request
from efficientbench.speedrun.steps import Kind, make_pipeline


def read(examples: Examples) -> list[Example]:
    return list(examples.read(np.arange(len(examples))))


@pytest.fixture
def smoke(tmp_path: Path) -> Request:
    (tmp_path / "pipeline").mkdir()
    return Request(tmp_path / "pipeline", "cpu", stages=STAGES, task_data=SAMPLE, smoke=True)


@pytest.mark.parametrize("part", ["train", "test"])
def test_every_question_of_the_sample_has_the_answer_that_its_calculations_give(part: str) -> None:
    file = SAMPLE / "gsm8k" / f"{part}.jsonl"
    task = find_task("gsm8k")
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        *steps, last = row["answer"].splitlines()
        for step in steps:
            found = re.fullmatch(r"(.+) = <<(.+)=(.+)>>(.+)", step)
            assert found is not None, step
            shown, expression, noted, result = found.groups()
            assert (shown.replace(" ", ""), calculate(expression), noted) == (expression, result, result)
        assert last == f"#### {result}"
        for answer, reward in ((row["answer"], 1), (f"#### {result}1", 0)):
            assert task.reward(task.example(row), answer, lambda program, tests: False) == reward


@pytest.mark.parametrize("task", ["gsm8k", "arc_easy", "mmlu"])
def test_no_item_of_the_sample_is_learned_before_it_is_asked(task: str) -> None:
    learned, asked = (read(open_examples(task, SAMPLE / task / f"{part}.jsonl")) for part in ("train", "test"))
    questions = [example.messages[0].text for example in (*learned, *asked)]
    assert len(asked) >= 12
    assert len(set(questions)) == len(questions)


def test_the_mixtures_and_the_items_of_core_are_in_their_formats() -> None:
    for stage in (MID, SFT):
        file = SAMPLE / MIXTURES[stage].name
        for source in open_mixture(read_mixture(file), file):
            assert read(source.examples)
    assert [len(task.rows) for task in read_bundle(SAMPLE / "core", None).tasks.values()] == [12, 12, 12]


@pytest.mark.parametrize("depth", [8, 20])
def test_its_models_are_those_of_the_smoke_runs_of_chat_yaml(smoke: Request, depth: int) -> None:
    file = write_matrix(replace(smoke, depth=depth), None)
    for stage in (STAGES[0], STAGES[-1]):
        name = f"{stage}_d{depth}"
        ours, shipped = (resolve(name, smoke=True, matrix_file=matrix) for matrix in (file, CHAT))
        assert ours.smoke
        assert ours.model == shipped.model
        assert (ours.training.validation_interval, ours.training.validate_every_tokens) == (0, 0)


@pytest.mark.parametrize("variant", ["mla", "nsa"])
def test_it_takes_other_architectures(smoke: Request, variant: str) -> None:
    base = make_pipeline(replace(smoke, variants=(variant,))).runs[0]
    assert (base.model.attention.kind, base.model.layers, base.name) == (variant, 4, f"base_{variant}_d12_smoke")


def test_it_needs_nothing_from_the_hub(smoke: Request) -> None:
    smoke.check()
    steps = make_pipeline(smoke).steps
    words = [step.command for step in steps]
    assert not [each for each in words if "download" in each]
    assert [each[1] for each in words if each and each[0] == "efficientbench-data"] == [
        *("sample", "train-tokenizer", "tokenize", "chat", "chat"),
    ]
    assert all("--smoke" in step.command for step in steps if step.kind is Kind.TRAIN)
    assert all(str(SAMPLE) in step.command for step in steps if "evaluate" in step.command)
    keep_choices(smoke)
    assert replace(kept_request(smoke.work, "cpu"), stages=STAGES) == smoke
