"""Rewards: ours and those of others, and what is said where one fails."""

from __future__ import annotations

import math
import traceback
from pathlib import Path

import pytest
from support import outside
from support.outside_task import Spelling

from efficientbench.basics.errors import ConfigError
from efficientbench.data_tools.chat.tasks.gsm8k import Gsm8k
from efficientbench.training.reinforcement.rewards import (
    RewardError,
    find_reward,
    reward_files,
    reward_of_task,
    rewards_of,
)

QUESTION = Gsm8k().example(
    {"question": "How much are 12 hundreds?", "answer": "<<12*100=1200>>It is 1,200.\n#### 1,200"}
)
PLACE = "rows.jsonl:8"
MINE = """
import numpy
def length(example, completion):
    return len(completion) / len(example.messages)

def single(example, completion):
    return numpy.float32(len(completion)) / 2

def faulty(example, completion):
    if completion == "x":
        return 1 / 0
    return {"": None, "nan": float("nan"), "inf": float("inf")}.get(completion, 1.0)

limit = 3
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of rewards that a user has written."""
    (tmp_path / "my_rewards.py").write_text(MINE)
    (tmp_path / "my_broken_rewards.py").write_text("import a_module_that_nobody_has")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_reward_of_gsm8k_compares_the_number_after_the_mark() -> None:
    completions = ["So #### 1200", "#### 1,200 hundreds", "#### 120", "1200", ""]
    assert rewards_of("gsm8k", find_reward("gsm8k"), QUESTION, completions, PLACE) == [1, 1, 0, 0, 0]


def test_a_task_rewards_its_answers() -> None:
    task = Spelling()
    apple = task.example({"word": "apple"})
    # As a score the second would be 0.
    assert rewards_of("of words", reward_of_task(task), apple, ["a p p l e", "a p p", ""], PLACE) == [1, 3 / 5, 0]
    completions = ["So #### 1200", "#### 120"]
    assert rewards_of("of gsm8k", reward_of_task(Gsm8k()), QUESTION, completions, PLACE) == [1, 0]


def test_a_users_own_reward_is_used() -> None:
    name = "my_rewards:length"
    assert rewards_of(name, find_reward(name), QUESTION, ["", "four"], PLACE) == [0, 2]
    numpys = rewards_of("my_rewards:single", find_reward("my_rewards:single"), QUESTION, ["", "abc"], PLACE)
    assert [type(each) for each in numpys] == [float, float]
    assert numpys == [0, 1.5]


def test_an_entry_point_names_a_reward(tmp_path: Path) -> None:
    outside.install(tmp_path, "efficientbench.rewards", "trial_length", "my_rewards:length")
    assert rewards_of("trial_length", find_reward("trial_length"), QUESTION, ["four"], PLACE) == [2]
    assert [file.name for file in reward_files("trial_length")] == ["my_rewards.py"]
    with pytest.raises(ConfigError, match=r"called 'trial_lenght': did you mean trial_length\?"):
        find_reward("trial_lenght")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8", "there is no reward called 'gsm8': did you mean gsm8k.* package.module:function"),
        ("other", "ours are arc_easy, arc_challenge, mmlu, gsm8k; yours is package.module:function"),
        ("my_rewards:lenght", r"reward my_rewards:lenght: my_rewards has no lenght; did you mean my_rewards:length\?"),
        ("my_rewards:limit", "my_rewards:limit is of class int, not a function"),
        ("nowhere_at_all:f", "there is no module nowhere_at_all: install its package"),
        ("my_broken_rewards:f", "my_broken_rewards needs a_module_that_nobody_has, which is not installed"),
    ],
)
def test_an_unknown_or_invalid_reward_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_reward(name)


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        ("", "returned None at rows.jsonl:8, answer 2: '': it must return a finite number"),
        ("nan", "returned nan at rows.jsonl:8, answer 2: 'nan': it must"),
        ("inf", "returned inf at rows.jsonl:8, answer 2: 'inf': it must"),
        ("x", "failed at rows.jsonl:8, answer 2: 'x': ZeroDivisionError: division by zero"),
    ],
)
def test_a_failing_reward_names_row_and_answer(completion: str, message: str) -> None:
    name = "my_rewards:faulty"
    reward = find_reward(name)
    assert not math.isnan(rewards_of(name, reward, QUESTION, ["fine"], PLACE)[0])
    with pytest.raises(RewardError, match=f"reward my_rewards:faulty {message}") as raised:
        rewards_of(name, reward, QUESTION, ["fine", completion], PLACE)
    # The rank's log has the line of the user's file.
    shown = "".join(traceback.format_exception(raised.value))
    assert ("my_rewards.py" in shown) == ("failed" in message)
