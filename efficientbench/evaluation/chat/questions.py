"""The questions of a chat task: choose the rows, and render them as prompts."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import sha256
from efficientbench.data_tools.chat.examples import Examples, made_rows, open_examples
from efficientbench.data_tools.chat.find_task import TASKS, code_files, find_task
from efficientbench.data_tools.chat.render import make_renderer
from efficientbench.data_tools.chat.task import Example, Task
from efficientbench.evaluation.task import Item, ItemResult, Options, prompt_hash

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened
    from efficientbench.training.checkpoints.hashing import Report

SEED = 42
"""The seed of the random order of rows, of which `limit` takes the first."""

OTHER_SPLIT = r"(auxiliary_)?(train|validation|valid|val|dev)([-_.]|$)"
"""What the names of files and folders of other splits than `test` begin with."""


@dataclass(frozen=True)
class Question:
    """One question, rendered for the model."""

    number: int
    """The row's number."""
    example: Example
    prompt: list[int]
    """The prompt's tokens, up to where the assistant's answer begins."""

    @property
    def name(self) -> str:
        """The item's name."""
        return f"row/{self.number}"

    def result(self, answer: str | None, right: bool | None, **more: Any) -> ItemResult:
        """Return the result of an answer; `more`: further fields of ItemResult."""
        hashed = prompt_hash(np.array(self.prompt, "<i8").tobytes())
        return ItemResult(self.name, hashed, answer, right, **more)


class Questions:
    """The questions of one task."""

    def __init__(self, name: str, run: Opened, options: Options, examples: Examples | None = None) -> None:
        """Read the rows, and render their prompts.

        Args:
            name: a chat task's name, ours or one from outside.
            run: the opened run, whose tokenizer renders the prompts.
            options: say where the rows are, and how many are asked.
            examples: the rows; None: read from where the options say.

        Raises:
            ConfigError: the rows are missing.
            DataError: a row is not in the task's form, or the tokenizer has no chat tokens.
        """
        self.renderer = make_renderer(run.tokenizer, f"of {options.folder}")
        examples = find_examples(name, options, run.report) if examples is None else examples
        self.task = examples.task
        numbers = _chosen(len(examples), options.limit)
        self.by_name: dict[str, Question] = {}
        for number, example in zip(numbers.tolist(), examples.read(numbers), strict=True):
            question = Question(number, example, self.renderer.prompt(example.messages).tolist())
            self.by_name[question.name] = question
        files = [*examples.files, *code_files(examples.name)]
        self.settings: Mapping[str, Any] = {
            "files_sha256": [sha256(path) for path in files],
            "rows": len(examples),
            "limit": options.limit,
            "style": self.renderer.style.name,
        }

    def items(self) -> list[Item]:
        """Return an item for each question, with the prompt's tokens as its cost."""
        return [Item(name, len(question.prompt)) for name, question in self.by_name.items()]

    def texts(self) -> dict[str, list[int]]:
        """Return the tokens of each question's own text, without its choices, by the item's name."""
        asked = [each.example.facts.get("question", each.example.messages[-2].text) for each in self.by_name.values()]
        return {name: self.renderer.encode(text).tolist() for name, text in zip(self.by_name, asked, strict=True)}

    def of(self, items: Sequence[Item]) -> list[Question]:
        """Return the questions of items, by ascending length of their prompts."""
        return sorted((self.by_name[item.name] for item in items), key=lambda each: len(each.prompt))


def _chosen(rows: int, limit: int | None) -> np.ndarray:
    """Return the ascending numbers of the rows that are asked."""
    return np.sort(np.random.default_rng(SEED).permutation(rows)[:limit])


def check_rows(name: str, options: Options) -> None:
    """Read the rows that a task asks. Raises ConfigError, DataError: as `find_examples`, or a row is unusable."""
    examples = find_examples(name, options)
    for _ in examples.read(_chosen(len(examples), options.limit)):
        pass


def find_examples(name: str, options: Options, report: Report | None = None) -> Examples:
    """Open a task's rows: below `--data`, or from the hub; a task from outside may make its own.

    `report` is told of the progress of a download.

    Raises:
        ConfigError: the rows are not below `--data`, or there are none.
        DataError: the rows cannot be read or downloaded, or there is no such task.
    """
    examples = _opened(name, options, report)
    if len(examples) == 0:
        raise ConfigError(f"{name}: {', '.join(map(str, examples.files)) or 'the task'} has no rows")
    return examples


def _opened(name: str, options: Options, report: Report | None) -> Examples:
    task = find_task(name)
    # A task that makes its own rows ignores `--data`, which is for the other tasks.
    if options.data is None or made_rows(name, task) is not None:
        on_progress = partial(report, f"downloading the rows of {name}") if report is not None else None
        return open_examples(name, hub=task.questions, on_progress=on_progress)
    return open_examples(name, _find_rows(name, options) if name in TASKS else options.data)


def has_rows(name: str, folder: Path) -> bool:
    """Return whether the folder of several tasks' items has a task's own folder or files of its name."""
    return (folder / name).is_dir() or any(any(folder.glob(pattern)) for pattern in _file_names(name))


def _file_names(name: str) -> list[str]:
    """Return the globs of a task's files in the folder of several tasks' items."""
    # Both tasks of ARC may take one file, which has the name of their class's parent.
    return [f"{each.name}.*" for each in type(find_task(name)).__mro__ if issubclass(each, Task) and each.name]


def _find_rows(name: str, options: Options) -> Path:
    """Return the path or glob of a task's rows: the split `test` of its own folder, or the file of its name."""
    folder, names = options.data_folder(name), _file_names(name)
    # Splits in `--data` itself could be another task's.
    for pattern in names if folder == options.data else ("test", "**/test[-.]*", *names):
        if glob.glob(str(folder / pattern), recursive=True):
            return folder / pattern
    if folder == options.data:
        raise ConfigError(f"{name}: --data {folder} has neither a folder {name} nor files {', '.join(names)}")
    others = sorted({path.name for path in folder.rglob("*") if re.match(OTHER_SPLIT, path.name)})
    if others:
        raise ConfigError(f"{name}: --data {folder} has no split test, only {', '.join(others)[:200]}")
    return folder


def standard_error(scores: Sequence[float]) -> float | None:
    """Return the standard error of the mean over questions; None for a single question."""
    return stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None
