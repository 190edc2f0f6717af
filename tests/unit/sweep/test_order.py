"""The order of a sweep's repeats: turns, balanced against a drift, random, and written down."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.running.output_folder import OutputFolder
from efficientbench.sweep.task import ORDER, Task, in_turns, take_turns
from efficientbench.sweep.tasks import TrainingTask


def tasks_of(names: Iterable[str], repeats: int) -> list[Task]:
    """Return the tasks as `build_tasks` does: each configuration's repeats in a row."""
    return [
        TrainingTask(f"{name}__seed_{seed}", (), OutputFolder(Path("suite") / name / f"seed_{seed}"))
        for name in names
        for seed in range(1, repeats + 1)
    ]


def names(tasks: list[Task]) -> str:
    return "".join(task.id[0] for task in tasks)


def test_configurations_take_turns_and_every_second_round_goes_backwards() -> None:
    for seed in range(20):
        ordered = in_turns(tasks_of("ABC", 4), seed)
        rounds = [names(ordered)[at : at + 3] for at in range(0, 12, 3)]
        assert [sorted(each) for each in rounds] == [["A", "B", "C"]] * 4
        assert (rounds[1], rounds[3]) == (rounds[0][::-1], rounds[2][::-1])
        # Each round has the next seed of every configuration.
        assert [task.id[-1] for task in ordered] == [*"111222333444"]


def test_a_steady_drift_affects_all_configurations_equally() -> None:
    for seed in range(20):
        ordered = in_turns(tasks_of("ABC", 4), seed)
        times = {name: sum(at for at, task in enumerate(ordered) if task.id[0] == name) for name in "ABC"}
        assert len(set(times.values())) == 1, times


def test_the_order_is_random_and_follows_from_its_seed() -> None:
    orders = {names(in_turns(tasks_of("ABC", 3), seed)) for seed in range(300)}
    assert len(orders) == 6 * 6  # of the first and the third round
    assert names(in_turns(tasks_of("ABC", 3), 5)) == names(in_turns(tasks_of("ABC", 3), 5))


def test_the_order_and_its_seed_are_written_and_kept(tmp_path: Path) -> None:
    ordered = take_turns(tasks_of("ABCDEF", 3), tmp_path)
    written = json.loads((tmp_path / ORDER).read_text(encoding="utf-8"))
    assert written["order"] == [task.id for task in ordered]
    assert names(ordered) == names(in_turns(tasks_of("ABCDEF", 3), written["seed"]))
    # The same command again goes on in the same order; a damaged file begins a new one.
    assert names(take_turns(tasks_of("ABCDEF", 3), tmp_path)) == names(ordered)
    (tmp_path / ORDER).write_text("{", encoding="utf-8")
    assert sorted(task.id for task in take_turns(tasks_of("AB", 2), tmp_path)) == [
        "A__seed_1",
        "A__seed_2",
        "B__seed_1",
        "B__seed_2",
    ]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / ORDER).mkdir()
    with pytest.raises(ConfigError, match=ORDER):
        take_turns(tasks_of("AB", 2), tmp_path)


def test_a_configuration_with_fewer_repeats_has_its_turns_in_the_first_rounds() -> None:
    for seed in range(20):
        few, many = tasks_of("A", 2), tasks_of("BC", 4)
        ordered = names(in_turns([*few, *many], seed))
        assert [sorted(ordered[at : at + 3]) for at in (0, 3)] == [["A", "B", "C"]] * 2
        assert [sorted(ordered[at : at + 2]) for at in (6, 8)] == [["B", "C"]] * 2


def test_turns_may_belong_to_something_else_than_the_repeated_configuration() -> None:
    cells = [*tasks_of(["A_small", "A_large"], 1), *tasks_of(["B_small", "B_large"], 1)]
    ordered = [task.id.partition("__")[0] for task in in_turns(cells, 3, lambda task: task.id[0])]
    assert sorted(ordered[:2]) == ["A_small", "B_small"]
    assert sorted(ordered[2:]) == ["A_large", "B_large"]
