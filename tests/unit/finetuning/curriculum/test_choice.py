"""The curriculum that a run gets: difficulties from labels and numbers, and every fallback with its reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import ValidationError

from efficientbench.basics.errors import ConfigError
from efficientbench.finetuning.curriculum.choice import RunOrder, choose_order
from efficientbench.finetuning.curriculum.config import CurriculumConfig
from efficientbench.finetuning.curriculum.difficulty import Sample, levels_of_scores, reasoning_steps

NAMES = ("explain", "reasoning", "topology")


def samples_of(labels: Sequence[object]) -> list[Sample]:
    return [Sample(label, f"train.jsonl:{line}") for line, label in enumerate(labels, 1)]


def labelled(*counts: int) -> list[Sample]:
    return samples_of([name for name, count in zip(NAMES, counts, strict=True) for _ in range(count)])


def choose(samples: list[Sample], steps: int = 50, **keys: object) -> RunOrder:
    return choose_order(CurriculumConfig(**keys), samples, steps, 16)


def fallback(samples: list[Sample], steps: int = 50) -> str:
    """Return the reason for which `auto` trains in random order, after a check that `required` refuses for the same."""
    chosen = choose(samples, steps)
    record = chosen.record
    assert (record.asked, record.used, record.steps) == ("auto", "random", steps)
    assert chosen.order.size == steps * 16
    assert record.reason is not None
    assert [record.reason in line for line in chosen.warnings] == [True]
    with pytest.raises(ConfigError, match="curriculum.use=required") as refused:
        choose(samples, steps, use="required")
    assert record.reason in str(refused.value)
    return record.reason


def test_labelled_data_is_trained_in_stages_and_the_record_says_so() -> None:
    record = choose(labelled(1500, 1200, 1000), steps=200).record
    assert (record.asked, record.used, record.reason) == ("auto", "staged", None)
    assert [stage.steps for stage in record.stages] == [60, 80, 60]
    assert record.stages[0].used == (0.8, 0.2, 0.0)
    assert [(level.name, level.samples) for level in record.levels] == list(zip(NAMES, (1500, 1200, 1000), strict=True))
    assert sum(level.drawn for level in record.levels) == 200 * 16
    assert record.levels[0].passes == record.levels[0].drawn / 1500
    json.dumps(dataclasses.asdict(record))


def test_data_without_the_field_is_trained_in_random_order() -> None:
    assert "'difficulty' field not found" in fallback(samples_of([None] * 100))


def test_data_of_a_single_level_is_trained_in_random_order() -> None:
    assert fallback(labelled(100, 0, 0)) == "all samples are of one difficulty"


def test_a_run_too_short_for_its_stages_is_trained_in_random_order() -> None:
    assert fallback(labelled(50, 50, 50), steps=9) == "9 steps are fewer than 10"
    record = choose_order(
        CurriculumConfig(stages=[{"end": 0.1, "mixture": (1, 0, 0)}, {"end": 1, "mixture": (0, 0.5, 0.5)}]),
        labelled(50, 50, 50),
        20,
        16,
    ).record
    assert record.reason == "a stage of 2 of the 20 steps is shorter than 3"


def test_a_curriculum_that_is_off_is_random_without_a_warning() -> None:
    chosen = choose(labelled(50, 50, 50), use="off")
    assert (chosen.record.used, chosen.record.reason, chosen.warnings) == ("random", "curriculum.use=off", ())


def test_rows_without_a_level_are_named_and_refused() -> None:
    labels = ["explain"] * 10 + ["reasonning"] * 3 + [None] * 2 + ["topology"] * 5
    with pytest.raises(ConfigError) as error:
        choose(samples_of(labels))
    message = str(error.value)
    assert message.startswith("train.jsonl:11: 5 of 20 rows name none of the levels explain, reasoning, topology")
    assert "2 have no 'difficulty', 3 have 'reasonning' (did you mean 'reasoning'?)" in message


def test_rows_without_a_level_are_dropped_or_easiest_on_request() -> None:
    labels = ["explain"] * 10 + [None] * 10 + ["topology"] * 10
    dropped = choose(samples_of(labels), unlabelled="drop")
    assert not set(range(10, 20)) & set(dropped.order.tolist())
    assert dropped.record.samples == 20
    assert dropped.order.size == 50 * 16
    random = choose(samples_of(labels), unlabelled="drop", order="random")
    assert set(random.order.tolist()) == set(dropped.order.tolist()), "a baseline trains on the same samples"
    easiest = choose(samples_of(labels), unlabelled="easiest")
    assert easiest.record.levels[0].samples == 20


def test_the_share_of_an_empty_level_goes_to_the_others() -> None:
    chosen = choose(labelled(500, 500, 0))
    used = [stage.used for stage in chosen.record.stages]
    assert used[0] == (0.8, 0.2, 0.0)
    assert used[1] == (0.5, 0.5, 0.0)
    assert used[2] == pytest.approx((0.25 / 0.6, 0.35 / 0.6, 0))
    assert any("no sample has the level 'topology'" in line for line in chosen.warnings)
    with pytest.raises(ConfigError, match="no sample has the level topology"):
        choose(labelled(500, 500, 0), use="required")


def test_a_stage_of_an_empty_level_draws_the_others_by_size() -> None:
    stages = [{"end": 0.5, "mixture": (0.5, 0.5, 0)}, {"end": 1, "mixture": (0, 0, 1)}]
    record = choose(labelled(300, 100, 0), stages=stages).record
    assert record.stages[1].used == (0.75, 0.25, 0)


def test_a_small_level_repeats_with_a_warning() -> None:
    chosen = choose(labelled(2000, 2000, 20), use="required", steps=200)
    assert chosen.record.levels[2].passes > 10
    assert chosen.record.levels[2].coverage == 1
    assert any("level 'topology' has 20 samples" in line and "1,000" in line for line in chosen.warnings)


def test_every_branch_has_the_same_number_of_steps() -> None:
    data = labelled(300, 200, 100)
    chosen = [choose(data, order=order) for order in ("paced", "shuffled", "random", "reversed", "random_levels")]
    chosen += [choose(data, pace=pace) for pace in ("competence", "sorted")]
    chosen += [choose(data, use="off"), choose(samples_of([None] * 600))]
    assert {each.order.size for each in chosen} == {50 * 16}
    assert len({each.record.order_hash for each in chosen[:7]}) == 7
    assert [each.record.used for each in chosen[:7]] == [
        *("staged", "shuffled", "random", "reversed", "random_levels", "competence", "sorted")
    ]


def test_numeric_labels_become_levels_of_equal_size() -> None:
    chosen = choose(samples_of([float(number) for number in range(300)]))
    assert [level.samples for level in chosen.record.levels] == [100, 100, 100]
    assert chosen.levels[0] == 0
    assert chosen.levels[299] == 2
    assert levels_of_scores([5, 5, 5, 5, 1], 2) == [0, 0, 1, 1, 0], "ties rank by their number"


@pytest.mark.parametrize("score", ["length", "steps", "loss"])
def test_samples_without_a_label_are_ranked_by_scores(score: str) -> None:
    numbers = [float(number) for number in range(90)]
    config = CurriculumConfig(score=score, pace="sorted")
    chosen = choose_order(config, samples_of([None] * 90), 10, 9, numbers=numbers)
    assert chosen.order.tolist() == list(range(90))
    assert (chosen.record.used, chosen.record.score) == ("sorted", score)


def test_a_score_that_is_no_number_is_refused_with_its_row() -> None:
    numbers = [1.0, 2.0, float("nan"), 4.0]
    with pytest.raises(ConfigError, match=r"train.jsonl:3: the difficulty by loss is nan"):
        choose_order(CurriculumConfig(score="loss"), samples_of([None] * 4), 10, 4, numbers=numbers)


def test_reasoning_steps_are_counted_by_calculations_or_lines() -> None:
    assert reasoning_steps("He has 48/2=<<48/2=24>>24.\nIn all 48+24=<<48+24=72>>72.\n#### 72") == 2
    assert reasoning_steps("First this.\n\nThen that.\n") == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"levels": ("a",)}, "at least 2"),
        ({"levels": ("a", "b", "a")}, "each name once"),
        ({"stages": [{"end": 0.5, "mixture": (1, 0, 0)}]}, "the last one ends at 0.5"),
        ({"stages": [{"end": 1, "mixture": (0.5, 0.4, 0)}]}, "add up to 0.9"),
        ({"stages": [{"end": 1, "mixture": (0.5, 0.5)}]}, "has 2 shares for 3 levels"),
        ({"stages": [{"end": 1, "mixture": (1, 0, 0)}, {"end": 0.5, "mixture": (1, 0, 0)}]}, "do not ascend"),
    ],
)
def test_an_invalid_curriculum_is_refused(keys: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CurriculumConfig(**keys)


def test_the_record_of_a_baseline_has_the_true_levels() -> None:
    """Random levels choose the order; drawn samples are counted by the true levels of the data."""
    data = labelled(400, 400, 400)
    record = choose(data, order="random_levels", steps=60).record
    drawn = np.array([level.drawn for level in record.levels])
    assert abs(drawn - drawn.mean()).max() < 0.15 * drawn.mean(), "labels dealt at random favour no level"
    assert record.levels[0].samples == 400
