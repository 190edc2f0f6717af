"""The examples of a task, by number: for mixtures, evaluation and reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat.conversations import Message
from efficientbench.data_tools.chat.find_task import TASKS, find_task
from efficientbench.data_tools.chat.task import Example, HubFiles, Task
from efficientbench.data_tools.rows import CSV_SUFFIXES, ROW_SUFFIXES, FileRows, HeldRows, Row, RowError, attempts
from efficientbench.data_tools.tokenizing.inputs import find_inputs

_ALL_FILES = 1_000_000
"""A limit that no dataset's number of files reaches: a task's rows are never cut silently."""


class Examples:
    """The examples of one task, by number: `examples[5]`. Can be pickled."""

    def __init__(self, name: str, task: Task, files: Sequence[Path]) -> None:
        """Open the rows of `files`; without files, the rows that the task makes itself.

        Raises:
            DataError: a file cannot be read, or the task cannot make its rows or has none.
        """
        self.name, self.task, self.files = name, task, list(files)
        if files:
            self._rows: FileRows | HeldRows = FileRows(files, task.csv_columns)
        elif (made := made_rows(name, task)) is not None:
            self._rows = HeldRows(f"{name}: row ", range(1, len(made) + 1), made)
        else:
            raise DataError(f"{name} has no rows of its own: name a path or a dataset")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Example:
        if not 0 <= number < len(self):
            raise IndexError(f"example {number:,}: {self.name} has {len(self):,}, counted from 0")
        return next(self.read(np.array([number])))

    def read(self, numbers: np.ndarray) -> Iterator[Example]:
        """Yield the examples with these ascending numbers.

        Raises:
            RowError: a row cannot be read, or does not fit the task; the message names its file and line.
        """
        for number, example in zip(numbers.tolist(), self.attempts(numbers), strict=True):
            if isinstance(example, RowError):
                raise RowError(f"{self.place(number)}: {example}")
            yield example

    def place(self, number: int) -> str:
        """Return the file and line of an example's row, for messages."""
        return self._rows.place(number)

    def attempts(self, numbers: np.ndarray) -> Iterator[Example | RowError]:
        """Yield the examples with these ascending numbers; in place of an unusable row, the error without its place."""
        for row in attempts(self._rows, numbers):
            try:
                yield row if isinstance(row, RowError) else _checked(self.task.example(row))
            except RowError as error:
                yield error
            except DataError:
                raise
            except Exception as error:
                if self.name in TASKS:
                    raise
                # Third-party code can fail in any way.
                yield RowError(f"{self.name}: {type(error).__name__}: {error}")


def _checked(found: Any) -> Example:
    """Return the example that a task made of a row. Raises RowError if it is not a valid `Example`."""
    if not isinstance(found, Example):
        raise RowError(f"its task's `example` returned {found!r:.60}: an Example is needed")
    if not found.messages or not all(isinstance(message, Message) for message in found.messages):
        raise RowError(f"its task's Example has the messages {found.messages!r:.60}: those of read_messages are needed")
    return found


def made_rows(name: str, task: Task) -> Sequence[Row] | None:
    """Return the rows that the task of this name makes itself; None if they come from files.

    Raises:
        DataError: the task's code fails, or does not return a list.
    """
    try:
        rows: Any = task.rows()
    except Exception as error:  # third-party code can fail in any way
        raise DataError(f"{name} cannot make its rows: {type(error).__name__}: {error}") from None
    if rows is not None and not isinstance(rows, Sequence):
        raise DataError(f"{name} cannot make its rows: `rows` returned {rows!r:.60}: a list is needed")
    return rows


def open_examples(
    name: str,
    path: Path | None = None,
    hub: HubFiles | None = None,
    on_progress: Callable[[], object] | None = None,
) -> Examples:
    """Open the examples of a task.

    Args:
        name: The task's name: one of the project's, or `package.module:Class`.
        path: A file, a folder or a glob with the task's rows; None to take them from `hub`.
        hub: The dataset with the task's rows; None for the task's own dataset or rows.
        on_progress: Called as a download makes progress, see `download_dataset`.

    Raises:
        DataError: the task or the file does not exist, or the download failed.
    """
    task = find_task(name)
    if path is not None:
        suffixes = (*ROW_SUFFIXES, *(CSV_SUFFIXES if task.csv_columns else ()))
        files = find_inputs([path], lambda each: each.suffix.lower() in suffixes, ", ".join(suffixes))
        return Examples(name, task, files)
    hub = hub or task.hub
    if hub is not None:
        # Imported here: it takes a while, and local files do not need it.
        from efficientbench.data_tools.download import DownloadRequest, download_dataset

        folder = Path("data") / hub.dataset.rpartition("/")[2]
        request = DownloadRequest(hub.dataset, folder, hub.config, num_files=_ALL_FILES, split=hub.split)
        return Examples(name, task, download_dataset(request, on_progress=on_progress))
    return Examples(name, task, [])
