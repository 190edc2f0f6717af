"""A task: rows that become examples, and how an answer to one is scored. One task is one small file.

A task from outside this project is a class of its own, named in a mixture as `my_module:Task`:

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
from efficientbench.data_tools.chat.rows import Row

RunProgram: TypeAlias = Callable[[str, str], bool]
"""Runs a Python program and its tests, in a process each, and returns whether both came to their end in the time that
they had. Tests import the functions that they call from the module `program`."""


@dataclass(frozen=True)
class Example:
    """A conversation of a task, and what an answer is scored by."""

    messages: tuple[Message, ...]
    """The last is the assistant's right answer."""
    choices: tuple[str, ...] = ()
    """The answers to choose from; empty: the answer is free text."""
    reference: str | None = None
    """The right choice, or what the right answer holds; None: no answer can be called right."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the task's scoring reads."""


@dataclass(frozen=True)
class HubFiles:
    """Files of a dataset on the Hugging Face hub."""

    dataset: str
    """OWNER/NAME."""
    config: str | None = None
    split: str | None = None


class Task(ABC):
    """One task. Its class has no arguments; it can be pickled."""

    hub: ClassVar[HubFiles | None] = None
    """Where its rows come from, if a mixture names no other place."""
    csv_columns: ClassVar[tuple[str, ...] | None] = None
    """What the columns of its CSV files are called, which have no header; None: it takes no CSV."""

    @abstractmethod
    def example(self, row: Row) -> Example:
        """Return the example of a row. Raises RowError: the row is not one of this task."""

    def rows(self) -> Sequence[Row] | None:
        """Return rows that the task makes itself, the same ones at every call; None: they come from files."""
        return None

    def score(self, example: Example, completion: str, run: RunProgram) -> float:
        """Return 1 for a right answer and 0 for a wrong one: by default, whether it is the reference.

        Args:
            example: What was asked.
            completion: What was answered, without the token that ends it.
            run: For tasks whose answers are programs.

        Raises:
            DataError: no answer to this example can be called right.
        """
        if example.reference is None:
            raise DataError(f"{type(self).__name__} has no right answers: it can be trained on, and not be scored")
        return float(completion.strip() == example.reference)

    def reward(self, example: Example, completion: str, run: RunProgram) -> float:
        """Return the reward of an answer in reinforcement learning: by default its score."""
        return self.score(example, completion, run)


def text_of(row: Row, key: str) -> str:
    """Return the text under a key of a row. Raises RowError: there is none."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        there = ", ".join(map(str, row))
        raise RowError(f"{key}: a text is needed, it is: {value!r:.60}; the row's keys: {there:.200}")
    return value


def multiple_choice(question: str, letters: Sequence[str], choices: Sequence[str], right: str) -> Example:
    """Return a question with choices as nanochat's tasks write it: the answer is a letter, nothing else.

    Each letter stands after its choice and without a blank before it, so that it is the same token in the question and
    in the answer.
    """
    lines = [f"Multiple Choice question: {question}"]
    lines += [f"- {choice}={letter}" for letter, choice in zip(letters, choices, strict=True)]
    asked = "\n".join([*lines, "", "Respond only with the letter of the correct answer."])
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": right}]
    return Example(read_messages(messages), tuple(letters), right, facts={"question": question})
