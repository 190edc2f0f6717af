"""A task of an evaluation: items, how each is scored, and what follows from all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from efficientbench.basics.errors import ConfigError

BATCH_TOKENS = 8192
"""Tokens, with those that only fill up rows, that are computed at once."""


@dataclass(frozen=True)
class Item:
    """One question of a task, or one document."""

    name: str
    """Unique within the task, and the same in every call."""
    cost: float = 1.0
    """How long it takes, relative to the task's other items."""


@dataclass(frozen=True)
class ItemResult:
    """What a model made of an item."""

    item: str
    """Its name."""
    prompt_sha256: str
    """SHA-256 (hex) of what the model was given."""
    answer: Any
    """As JSON; None where there is none."""
    right: bool | None
    """None where an item has no right answer."""
    losses: tuple[float | None, ...] | None = None
    """Mean loss per token of each choice, nats; None for a choice without a token of its own."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the task keeps of it, as JSON."""


@dataclass(frozen=True)
class Summary:
    """What follows from all items of a task."""

    figures: Mapping[str, float | None]
    """By their names; None where `unavailable` has the reason."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Figure → why it is None."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Figures of parts of the task, and what else is to be known of it, as JSON."""


class Task(Protocol):
    """A task that is bound to an open model."""

    name: str
    settings: Mapping[str, Any]
    """All that decides the results, besides the checkpoint, as JSON: files by their SHA-256, the limit of items."""

    def items(self) -> Sequence[Item]:
        """Return all items, always in the same order."""
        ...

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the results of some of the items, batch after batch, in any order."""
        ...

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return what follows from the results of all items, by their names."""
        ...


@dataclass(frozen=True)
class Options:
    """What the command asks of its tasks."""

    folder: Path
    """Of the run."""
    data: Path | None = None
    """Where tasks find their items."""
    text: Path | None = None
    """What `loss` is computed on; None: the run's own validation text."""
    limit: int | None = None
    """Items of a task, at most; a task of several parts takes so many of each."""
    allow_code: bool = False
    """Whether programs that the model writes may be run."""
    samples: int = 1
    """Answers to each question whose answer is text."""
    temperature: float = 0.0
    """Of sampling such answers."""
    max_new_tokens: int = 512
    """Of such an answer."""
    lengths: tuple[int, ...] = ()
    """Tokens of long contexts; none: some that follow from the training's."""
    contamination: bool = False
    """Whether items that stand in the run's training split are counted, and left out of further figures."""
    batch_tokens: int = BATCH_TOKENS

    def data_folder(self, task: str) -> Path:
        """Return the folder of a task's items: that of its name in `data`, or `data` itself.

        Raises ConfigError: the command names none, or there is no such folder.
        """
        if self.data is None:
            raise ConfigError(f"{task}: --data FOLDER is missing: where its items lie")
        if not self.data.is_dir():
            raise ConfigError(f"--data: {self.data}: no such folder")
        own = self.data / task
        return own if own.is_dir() else self.data


def prompt_hash(prompt: str | bytes) -> str:
    """Return the SHA-256 (hex) of a prompt."""
    return hashlib.sha256(prompt.encode() if isinstance(prompt, str) else prompt).hexdigest()
