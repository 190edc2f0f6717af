"""The interface of an evaluation task: its items, their results, and its summary."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from efficientbench.basics.errors import ConfigError

BATCH_TOKENS = 8192
"""Tokens that are computed at once, padding included."""


@dataclass(frozen=True)
class Item:
    """One question or document of a task."""

    name: str
    """The item's name, unique within the task and the same in every call."""
    cost: float = 1.0
    """The item's computing time, relative to the task's other items."""


@dataclass(frozen=True)
class ItemResult:
    """The model's result on one item."""

    item: str
    """The item's name."""
    prompt_sha256: str
    """The SHA-256 (hex) of the model's prompt."""
    answer: Any
    """The model's answer, as JSON; None if there is none."""
    right: bool | None
    """Whether the answer is right; None if the item has no right answer."""
    losses: tuple[float | None, ...] | None = None
    """Each choice's mean loss per token, nats; None for a choice without a scored token."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further facts that the task records, as JSON."""


@dataclass(frozen=True)
class Summary:
    """The figures of a task over all its items."""

    figures: Mapping[str, float | None]
    """The figures by name; None for a figure whose reason is in `unavailable`."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Why a figure is None, by the figure's name."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the task's parts, and further facts about the task, as JSON."""


class Task(Protocol):
    """A task that is bound to an opened model."""

    name: str
    settings: Mapping[str, Any]
    """All that decides the results besides the checkpoint, as JSON: SHA-256 of files, the limit of items, and more."""

    def items(self) -> Sequence[Item]:
        """Return all items, always in the same order."""

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the results of some of the items, batch after batch, in any order."""

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return the summary of the results of all items; `results` is by the items' names."""


@dataclass(frozen=True)
class Options:
    """The command's options for its tasks."""

    folder: Path
    """The run's folder."""
    data: Path | None = None
    """The folder of the tasks' data."""
    text: Path | None = None
    """The text of `loss`, `position_loss` and `needle`; None: the run's validation text."""
    limit: int | None = None
    """The most items of a task, or of each part of a task with several parts."""
    allow_code: bool = False
    """Whether programs that the model wrote may run."""
    samples: int = 1
    """Answers that are sampled to each question with a generated answer."""
    temperature: float = 0.0
    """The sampling temperature of generated answers."""
    max_new_tokens: int = 512
    """The most tokens of a generated answer."""
    lengths: tuple[int, ...] = ()
    """Lengths of long contexts, tokens; empty: lengths derived from the training's."""
    contamination: bool = False
    """Whether items in the run's training split are counted, and further figures computed without them."""
    batch_tokens: int = BATCH_TOKENS

    def data_folder(self, task: str) -> Path:
        """Return the folder of a task's data: the subfolder of `data` with the task's name, or `data` itself.

        Raises ConfigError: `data` is None or is not a folder.
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
