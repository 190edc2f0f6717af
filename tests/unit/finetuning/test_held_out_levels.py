"""Levels of held-out examples, so that their losses stand beside the levels that were trained on."""

from __future__ import annotations

import numpy as np

from efficientbench.finetuning.curriculum.choice import RunOrder, choose_order
from efficientbench.finetuning.curriculum.config import CurriculumConfig
from efficientbench.finetuning.curriculum.difficulty import Sample, levels_between
from efficientbench.finetuning.examples.rows import Row
from efficientbench.finetuning.prepare import held_out_levels


def rows(*difficulties: object) -> list[Row]:
    return [Row((), difficulty, f"rows.jsonl:{number}") for number, difficulty in enumerate(difficulties, 1)]


def ordered(config: CurriculumConfig, train: list[Row], numbers: list[float] | None = None) -> RunOrder:
    samples = [Sample(row.difficulty, row.place) for row in train]
    return choose_order(config, samples, 20, 4, numbers)


def test_held_out_scores_are_cut_at_the_levels_of_the_training_scores() -> None:
    """30 lengths in three levels of ten: to 10, to 20, and longer."""
    config, train = CurriculumConfig(score="length"), rows(*[None] * 30)
    numbers = [float(length) for length in range(30, 0, -1)]
    order = ordered(config, train, numbers)
    found = held_out_levels(
        config, order, (train, numbers), (rows(None, None, None, None, None), [1, 10, 11, 20.5, 99])
    )
    assert found.tolist() == [0, 0, 1, 2, 2]
    assert found.dtype == np.int64


def test_held_out_numbers_are_cut_at_the_levels_of_the_training_numbers() -> None:
    config, train = CurriculumConfig(), rows(*[number / 10 for number in range(30)])
    order = ordered(config, train)
    held_out = rows(-3, 0.9, 1.0, 2.0, 7, None)
    assert held_out_levels(config, order, (train, None), (held_out, None)).tolist() == [0, 0, 1, 2, 2, -1]


def test_named_levels_are_kept() -> None:
    config, train = CurriculumConfig(), rows(*["explain", "reasoning", "topology"] * 10)
    held_out = rows("topology", "explain", None, "other")
    assert held_out_levels(config, ordered(config, train), (train, None), (held_out, None)).tolist() == [2, 0, -1, -1]


def test_held_out_examples_have_no_levels_if_the_training_has_none() -> None:
    config, train = CurriculumConfig(use="off", score="length"), rows(*[None] * 30)
    numbers = [float(length) for length in range(30)]
    order = ordered(config, train, numbers)
    assert held_out_levels(config, order, (train, numbers), (rows(None), [3.0])).tolist() == [-1]
    computed = CurriculumConfig(use="off", score="loss")
    assert held_out_levels(computed, order, (train, None), (rows(None), None)).tolist() == [-1]


def test_an_empty_level_of_the_training_gets_no_held_out_example() -> None:
    assert levels_between([0.0, 1.5, 9.0], [(1.0, 0), (2.0, 2)]).tolist() == [0, 2, 2]
