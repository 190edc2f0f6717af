"""A task turns rows into examples, and scores answers to them. One task is one small file.

Its class declares all that mixtures, evaluation, reinforcement learning, help and lists read of it. A third-party task
is a subclass of `Task`, which a user names as `my_module:Spelling`:

    class Spelling(Task):
        def example(self, row):
            messages = [{"role": "user", "content": f"Spell {row['word']}."}, {"role": "assistant", "content": ...}]
            return Example(read_messages(messages), reference=...)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat.conversations import Message, RowError, read_messages
from efficientbench.data_tools.rows import Row

RunProgram: TypeAlias = Callable[[str, str], bool]
"""Runs a Python program and its tests, in a process each, and returns whether both finished without an error and in
time. Tests import the functions that they call from the module `program`."""


@dataclass(frozen=True)
class Example:
    """A conversation of a task, and the values by which an answer is scored."""

    messages: tuple[Message, ...]
    """The conversation; its last message is the assistant's right answer."""
    choices: tuple[str, ...] = ()
    """The answers to choose from; empty for free text."""
    reference: str | None = None
    """The right choice, or the result in a right answer; None if answers are not compared with one."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further values that the task's `score` reads."""


@dataclass(frozen=True)
class HubFiles:
    """Files of a dataset on the Hugging Face hub."""

    dataset: str
    """OWNER/NAME of the dataset."""
    config: str | None = None
    split: str | None = None


class Task(ABC):
    """One task. Its class takes no arguments; the task can be pickled."""

    name: ClassVar[str] = ""
    """The name of one of the project's tasks; a third-party task has the name by which its user finds it."""
    about: ClassVar[str] = ""
    """What the task asks, for lists of the project's tasks."""
    hub: ClassVar[HubFiles | None] = None
    """The dataset of the task's rows, unless a mixture names another source."""
    questions: ClassVar[HubFiles | None] = None
    """The dataset of the questions of an evaluation; None: `hub`, and one of the project's tasks is not evaluated."""
    baseline: ClassVar[float | None] = None
    """The accuracy of guessing in ChatCORE, which is of the project's tasks; None: the task is no part of it."""
    runs_programs: ClassVar[bool] = False
    """Whether the task's answers are programs, which `score` runs."""
    csv_columns: ClassVar[tuple[str, ...] | None] = None
    """Names of the columns of the task's CSV files, which have no header; None if it takes no CSV."""

    @abstractmethod
    def example(self, row: Row) -> Example:
        """Return the example of a row. Raises RowError if the row does not fit this task."""

    def rows(self) -> Sequence[Row] | None:
        """Return the rows that the task makes itself, the same at every call; None if they come from files."""
        return None

    def score(self, example: Example, completion: str, run: RunProgram) -> float:
        """Return 1 for a right answer and 0 for a wrong one; by default, compare it with the reference.

        Args:
            example: The example that was asked.
            completion: The model's answer, without the token that ends it.
            run: Runs an answer that is a program.

        Raises:
            DataError: the example has no reference.
        """
        if example.reference is None:
            raise DataError(f"{type(self).__name__} has no right answers: it can be trained on, and not be scored")
        return float(completion.strip() == example.reference)

    def reward(self, example: Example, completion: str, run: RunProgram) -> float:
        """Return the reward of an answer in reinforcement learning: by default its score."""
        return self.score(example, completion, run)


def text_of(row: Row, key: str) -> str:
    """Return the text under a row's key. Raises RowError if there is none."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        there = ", ".join(map(str, row))
        raise RowError(f"{key}: a text is needed, it is: {value!r:.60}; the row's keys: {there:.200}")
    return value


def multiple_choice(question: str, letters: Sequence[str], choices: Sequence[str], right: str) -> Example:
    """Return a question with choices as nanochat's tasks write it: the answer is a letter, nothing else.

    Each letter follows its choice, without a space before it, so that it is the same token in question and answer.
    """
    lines = [f"Multiple Choice question: {question}"]
    lines += [f"- {choice}={letter}" for letter, choice in zip(letters, choices, strict=True)]
    asked = "\n".join([*lines, "", "Respond only with the letter of the correct answer."])
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": right}]
    return Example(read_messages(messages), tuple(letters), right, facts={"question": question})
