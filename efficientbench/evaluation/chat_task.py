"""Chat tasks by their names: ours, and those from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efficientbench.config.errors import ConfigError
from efficientbench.evaluation.categorical import Categorical
from efficientbench.evaluation.generative import NEEDS_CODE, Generative
from efficientbench.evaluation.questions import Questions
from efficientbench.evaluation.task import Options, Task

if TYPE_CHECKING:
    from efficientbench.generation.opened import Opened


def make_chat_task(name: str, run: Opened, options: Options) -> Task:
    """Bind a chat task to a model: categorical where every question has choices, else generative.

    Args:
        name: one of `questions.SOURCES`, or `package.module:Class`.
        run: the model.
        options: of the command.

    Raises:
        ConfigError: its questions are not at hand, or its answers are programs that may not be run.
        DataError: a row is none of the task's, or the tokenizer cannot ask it.
    """
    if name == "humaneval" and not options.allow_code:
        raise ConfigError(f"{name}: {NEEDS_CODE}")
    questions = Questions(name, run, options)
    kind = Categorical if all(each.example.choices for each in questions.by_name.values()) else Generative
    # The name of its files.
    return kind(name.replace(":", "."), run, options, questions)
