"""A mixture: a YAML file that names tasks, the rows and epochs of each, and the seed of their common order."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import Field, StrictInt, ValidationError

from efficientbench.basics.errors import DataError, first_line
from efficientbench.basics.foreign import parse_yaml, read_text
from efficientbench.basics.part import Part
from efficientbench.data_tools.chat.examples import Examples, open_examples
from efficientbench.data_tools.chat.find_task import find_task
from efficientbench.data_tools.chat.task import HubFiles

_MAX_SEED = 2**63 - 1


class Entry(Part):
    """One task of a mixture."""

    task: str
    """The task's name: one of the project's, or `package.module:Class`."""
    path: str | None = None
    """A file, a folder or a glob with the task's rows, relative to the mixture's folder."""
    dataset: str | None = None
    """OWNER/NAME of a dataset on the hub; None for the task's own."""
    config: str | None = None
    """Configuration of the dataset."""
    split: str | None = None
    """Split of the dataset."""
    start: Annotated[StrictInt, Field(ge=0)] = 0
    """The first row, counted from 0."""
    stop: Annotated[StrictInt, Field(ge=1)] | None = None
    """The row after the last one; None for all rows from `start`."""
    rows: Annotated[StrictInt, Field(ge=1)] | None = None
    """The number of rows drawn from that range by the seed; None for all rows."""
    epochs: Annotated[StrictInt, Field(ge=1)] = 1
    """How often each row occurs."""


class Mixture(Part):
    """The tasks of a mixture, and the seed of their order."""

    seed: Annotated[StrictInt, Field(ge=0, le=_MAX_SEED)] = 42
    unusable: Literal["error", "drop"] = "error"
    """Whether a row that cannot be used ends the work, or is left out and counted."""
    tasks: Annotated[list[Entry], Field(min_length=1)]


@dataclass(frozen=True)
class Source:
    """The rows of one task that a mixture takes."""

    entry: Entry
    examples: Examples
    numbers: np.ndarray
    """The numbers of those rows, ascending, int64."""


def read_mixture(path: Path) -> Mixture:
    """Read a mixture. Raises DataError, with file and key, if the file is not a valid mixture."""
    try:
        content = parse_yaml(read_text(path))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DataError(f"{path}:{line}: not YAML: {error.problem}") from None
    # ValueError: an integer of more digits than Python parses.
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(f"{path}: not YAML: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: a mixture has the keys seed and tasks")
    try:
        return Mixture.model_validate(content)
    except ValidationError as error:
        raise DataError(f"{path}: {_explained(error.errors()[0])}") from None


def _explained(error: Any) -> str:
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] != "extra_forbidden":
        return f"{key}: {error['msg']}, it is: {error['input']!r:.60}"
    known = list((Entry if "[" in key else Mixture).model_fields)
    near = get_close_matches(str(error["loc"][-1]), known, 1)
    return f"{key}: unknown key; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")


def open_mixture(mixture: Mixture, file: Path) -> list[Source]:
    """Open the sources of a mixture that was read from `file`.

    Raises:
        DataError: a task or file does not exist, or has too few rows; the message names the mixture's file and key.
    """
    sources = []
    for place, entry in enumerate(mixture.tasks):
        key = f"{file}: tasks[{place}]"
        examples = _opened(entry, file.parent, key)
        sources.append(Source(entry, examples, _numbers(entry, len(examples), mixture.seed, key)))
    return sources


def _opened(entry: Entry, folder: Path, key: str) -> Examples:
    named = [name for name in ("dataset", "config", "split") if getattr(entry, name) is not None]
    if entry.path is not None and named:
        raise DataError(f"{key}.{named[0]}: it is of the hub, and path names files here: leave one of them out")
    try:
        if entry.path is not None:
            return open_examples(entry.task, folder / os.path.expanduser(entry.path))
        return open_examples(entry.task, hub=_hub(entry))
    except DataError as error:
        raise DataError(f"{key}: {error}") from None


def _hub(entry: Entry) -> HubFiles | None:
    """Return an entry's dataset: its own, or the task's with the entry's config and split; None if it names none."""
    if entry.dataset is not None:
        return HubFiles(entry.dataset, entry.config, entry.split)
    if entry.config is None and entry.split is None:
        return None
    own = find_task(entry.task).hub
    if own is None:
        named = "config" if entry.config is not None else "split"
        raise DataError(f"{named}: {entry.task} has no dataset of its own: name one under dataset")
    return HubFiles(own.dataset, entry.config or own.config, entry.split or own.split)


def _numbers(entry: Entry, available: int, seed: int, key: str) -> np.ndarray:
    """Return the numbers of the rows that an entry takes, ascending."""
    if not available:
        raise DataError(f"{key}: {entry.path or entry.dataset or entry.task} holds no row")
    stop = available if entry.stop is None else entry.stop
    if stop > available:
        raise DataError(f"{key}.stop: {stop:,}, and {entry.task} has {available:,} rows")
    if entry.start >= stop:
        raise DataError(f"{key}.start: no row from {entry.start:,} to {stop:,}; {entry.task} has {available:,} rows")
    numbers = range(entry.start, stop)
    if entry.rows is None:
        return np.array(numbers, np.int64)
    if entry.rows > len(numbers):
        raise DataError(f"{key}.rows: {entry.rows:,}, and {entry.task} has {len(numbers):,} rows from start to stop")
    return np.array(sorted(random.Random(seed).sample(numbers, entry.rows)), np.int64)


def draw_order(sources: Sequence[Source], seed: int) -> np.ndarray:
    """Return the order of all conversations: indices, int64, into the concatenated rows of all sources.

    An index occurs as often as its source has epochs. The same mixture and seed give the same order.
    """
    order: list[int] = []
    first = 0
    for source in sources:
        order += [*range(first, first + len(source.numbers))] * source.entry.epochs
        first += len(source.numbers)
    random.Random(seed).shuffle(order)
    return np.array(order, np.int64)


def without(order: np.ndarray, rejected: np.ndarray) -> np.ndarray:
    """Return an order without the indices `rejected`, which ascend; the other indices count the rows that are left."""
    kept = order[~np.isin(order, rejected)]
    return kept - np.searchsorted(rejected, kept)
