"""The questions of reinforcement learning: their prompts as tokens, and the questions of each step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.config.reinforcement import ReinforcementConfig
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.chat.examples import Examples, made_rows, open_examples
from efficientbench.data_tools.chat.find_task import find_task
from efficientbench.data_tools.chat.render import make_renderer
from efficientbench.data_tools.chat.task import Example
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.training.reinforcement.rewards import check_tested, find_reward, reward_of_task, rewards_of


@dataclass(frozen=True)
class Question:
    """One question."""

    row: int
    """Number of the task's row, counted from 0."""
    example: Example
    """The row's example."""
    prompt: list[int]
    """The prompt's tokens, which the assistant's answer follows."""


class Questions:
    """The questions that a run learns from; each epoch asks them in another order."""

    def __init__(self, config: RunConfig, tokenizer: TextTokenizer, name: str) -> None:
        """Read the task's rows and render their prompts.

        `name`: the user's name of the tokenizer, for messages.

        Raises:
            ConfigError: the task has no rows, or no question leaves room for an answer.
            DataError: a row is not in the task's format, or the tokenizer has no chat tokens.
        """
        rl, training, longest = config.rl, config.training, config.model.position.longest
        self.renderer = make_renderer(tokenizer, name)
        self.examples = open_rows("questions", rl.task, rl.questions)
        self.per_step = training.global_batch_size // rl.samples
        self._seed = config.order_seed
        # A sequence of S positions holds S + 1 tokens.
        capacity = training.seq_len + 1 if longest is None else min(training.seq_len + 1, longest)
        found = [
            Question(row, example, self.renderer.prompt(example.messages).tolist())
            for row, example in enumerate(self.examples.read(np.arange(len(self.examples))))
        ]
        self.asked = [each for each in found if len(each.prompt) + rl.max_new_tokens <= capacity]
        self.too_long = len(found) - len(self.asked)
        """Number of questions that are not asked, because they leave no room for the longest answer."""
        if not self.asked:
            raise ConfigError(
                f"rl.questions: none of the {len(found):,} questions of {rl.task} has at most "
                f"{capacity - rl.max_new_tokens:,} tokens, which training.seq_len={training.seq_len:,} and "
                f"rl.max_new_tokens={rl.max_new_tokens:,} leave for it"
            )

    def of_step(self, step: int) -> list[tuple[int, Question]]:
        """Return (turn, question) for each question of a step; steps count from 1.

        The turn is the number of questions asked before it since the first step. It seeds the sampling of answers, so
        that they differ when a later epoch asks the same question again.
        """
        return [(turn, self._of_turn(turn)) for turn in range((step - 1) * self.per_step, step * self.per_step)]

    def _of_turn(self, turn: int) -> Question:
        epoch, place = divmod(turn, len(self.asked))
        return self.asked[np.random.default_rng((self._seed, epoch)).permutation(len(self.asked))[place]]


def open_rows(key: str, task: str, path: str | None) -> Examples:
    """Open the rows of a task.

    Args:
        key: the key in section `rl` that has the path, for messages.
        task: the task's name, or `package.module:Class`.
        path: a file, a folder or a glob; None: the task makes its own rows.

    Raises:
        ConfigError: there is no path and the task makes no rows, or the files have no rows.
        DataError: the task or the file does not exist.
    """
    if path is None and made_rows(task, find_task(task)) is None:
        raise ConfigError(f"rl.{key}: missing: a file, folder or glob of the rows of {task}")
    examples = open_examples(task, Path(path) if path is not None else None)
    if len(examples) == 0:
        raise ConfigError(f"rl.{key}: {task if path is None else path} has no rows")
    return examples


def check_rewards(rl: ReinforcementConfig) -> None:
    """Refuse an unknown reward, a task without a reward, and a test task that cannot score answers.

    Raises:
        ConfigError, DataError: the message says what is missing.
    """
    check_tested(rl, find_task(rl.task))
    if rl.reward is not None:
        find_reward(rl.reward)
    else:
        asked = open_rows("questions", rl.task, rl.questions)
        rewards_of(f"of {rl.task}", reward_of_task(asked.task), asked[0], [""], asked.place(0))
    if not rl.test_every:
        return
    tested = open_rows("test_questions", rl.task, rl.test_questions)
    try:
        tested.task.score(tested[0], "", lambda program, tests: False)
    except (ConfigError, DataError):
        raise
    except Exception as error:  # code of others fails in any way
        raise ConfigError(f"rl.test_every: {rl.task} cannot score: {type(error).__name__}: {error}") from None
