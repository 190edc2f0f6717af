"""The reward of a completion: a function of an example and the model's completion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import TypeAlias

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.basics.plugins import load, place_of, source_files, unknown
from efficientbench.config.reinforcement import ReinforcementConfig
from efficientbench.data_tools.chat.find_task import EVALUATED, TASKS
from efficientbench.data_tools.chat.task import Example, Task

Reward: TypeAlias = Callable[[Example, str], float]
"""(example, completion) → the reward; higher is better."""
LARGEST = 1e38
"""The largest absolute reward, so that the difference of two rewards fits into float32."""


class RewardError(ConfigError):
    """A reward function failed, or did not return a finite number."""


def check_tested(rl: ReinforcementConfig, task: Task | type[Task]) -> None:
    """Raise ConfigError if a run is to test itself by a task whose answers are programs."""
    if rl.test_every and task.runs_programs:
        raise ConfigError(
            f"rl.test_every: the answers to {rl.task} are programs, which a training does not run: evaluate its "
            "checkpoints by `efficientbench evaluate --allow-code`"
        )


def reward_of_task(task: Task) -> Reward:
    """Return the task's own reward, which raises DataError if it would have to run a program."""
    return lambda example, completion: task.reward(example, completion, _run_nothing)


def _run_nothing(program: str, tests: str) -> bool:
    """Refuse to run a model's program. Always raises DataError."""
    raise DataError(
        "its answers are programs, which a training does not run: name another reward by "
        "rl.reward=package.module:function"
    )


ENTRY_POINTS = "efficientbench.rewards"
OWN: dict[str, Reward] = {name: reward_of_task(TASKS[name]()) for name in EVALUATED if not TASKS[name].runs_programs}
"""The project's own rewards by name: those of its tasks with right answers."""


def find_reward(name: str) -> Reward:
    """Return the reward function of a name in `OWN`, of an entry point, or of `package.module:function`.

    Call this only with a name from the user's own command, because importing runs code.

    Raises:
        ConfigError: the reward does not exist, or its module cannot be imported.
    """
    if name in OWN:
        return OWN[name]
    place = place_of(name, ENTRY_POINTS)
    if place is None:
        raise ConfigError(unknown("reward", name, OWN, ENTRY_POINTS, "package.module:function"))
    return load(f"reward {name}", place, callable, "a function")


def reward_files(name: str | None) -> list[Path]:
    """Return the file of an imported reward from outside this project; an empty list for our own rewards."""
    place = None if name is None or name in OWN else place_of(name, ENTRY_POINTS)
    return [] if place is None else source_files(place)


def rewards_of(name: str, reward: Reward, example: Example, completions: Sequence[str], place: str) -> list[float]:
    """Return the reward of each completion of one question.

    The reward's `name` and the `place` of the question's row are for messages.

    Raises:
        RewardError: the function raises, or returns no finite number; the message names the row and the answer.
    """
    return [
        _checked(name, reward, example, completion, f"{place}, answer {number}: {completion!r:.80}")
        for number, completion in enumerate(completions, 1)
    ]


def _checked(name: str, reward: Reward, example: Example, completion: str, where: str) -> float:
    try:
        found = reward(example, completion)
    except DataError as error:
        raise RewardError(f"reward {name}, {where}: {error}") from error
    except Exception as error:  # code of others fails in any way
        raise RewardError(f"reward {name} failed at {where}: {type(error).__name__}: {error}") from error
    try:
        # NumPy's numbers are Real too.
        value = float(found) if isinstance(found, Real) else None
    except OverflowError:
        value = math.inf
    if value is not None and abs(value) <= LARGEST:
        return value
    shown = str(found)[:80] if value is None else value
    must = f"it must return a finite number of at most ±{LARGEST:g}"
    raise RewardError(f"reward {name} returned {shown} at {where}: {must}")
