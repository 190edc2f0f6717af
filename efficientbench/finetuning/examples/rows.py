"""Read rows of examples in the three usual forms, from files or the Hugging Face hub."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efficientbench.basics.errors import DataError, first_line, nearest
from efficientbench.data_tools.download.hub_names import is_of_modelscope
from efficientbench.data_tools.rows import FileRows, RowError

Message = dict[str, str]
FORMS = "{instruction, input, output}, {prompt, completion} or {messages}"
_KNOWN = ("instruction", "input", "output", "prompt", "completion", "messages")
DROP_KEY = "data.unusable=drop leaves such rows out, and counts them"
_ROLES = ("system", "user", "assistant")
_HUB = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Row:
    """One example before tokenization."""

    messages: tuple[Message, ...]
    """The turns, each with `role` and `content`; the last is the assistant's."""
    difficulty: object
    """The value of the difficulty's column, as in the file; None if the row has none."""
    place: str
    """The row's file and line for messages, like `train.jsonl:17`."""


def read_rows(path: str | None, difficulty_field: str, levels: Sequence[str]) -> list[Row]:
    """Return the rows of a file, of a dataset on the hub, or of Python's manual.

    Args:
        path: the configuration's `data.path`; None: Python's manual.
        difficulty_field: the column of the difficulty.
        levels: the names of the levels that the manual's examples get, by the length of their answers.

    Raises:
        DataError: there is nothing to read, or a row has another form; the message names file, line and key.
    """
    found = _manual(levels, difficulty_field) if path is None else _entries(path)
    rows = [Row(_messages(entry, place), entry.get(difficulty_field), place) for place, entry in found]
    if not rows:
        raise DataError(f"{path}: holds no example")
    return rows


def _entries(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    file = Path(path)
    if not file.is_file():
        if is_of_modelscope(path):
            raise DataError(
                f"data.path: `efficientbench-data download {path}` brings its files, of which data.path names the one "
                "to train on: ModelScope does not say which that is"
            )
        if file.exists() or not _HUB.fullmatch(path):
            raise DataError(
                f"data.path: {path} is no file; a JSON, JSONL or parquet file serves, or the hub's owner/name"
            )
        yield from _of_hub(path)
        return
    rows = FileRows([file])
    entries = rows.read(np.arange(len(rows)))
    for place in map(rows.place, range(len(rows))):
        try:
            yield place, next(entries)
        except RowError as error:
            raise DataError(f"{place}: {error}; an example is {FORMS}") from None


def _of_hub(name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import datasets

    try:
        loaded = datasets.load_dataset(name, split="train")
    except Exception as error:
        reason = first_line(error)
        raise DataError(f"data.path: {name} is neither a file nor a dataset that the hub gives: {reason}") from None
    yield from ((f"{name}: row {number}", entry) for number, entry in enumerate(loaded, 1))


def _manual(levels: Sequence[str], difficulty_field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield paragraphs of the manual that Python ships, each as the answer to the previous one."""
    topics: Mapping[str, str] = importlib.import_module("pydoc_data.topics").topics
    found = []
    for topic, text in sorted(topics.items()):
        parts = [" ".join(part.split()) for part in text.split("\n\n")]
        prose = [part for part in parts if 40 <= len(part) <= 320]
        found += [(topic, *pair) for pair in zip(prose[:-1], prose[1:], strict=True)]
    by_length = sorted(range(len(found)), key=lambda number: len(found[number][2]))
    level = {number: levels[place * len(levels) // len(found)] for place, number in enumerate(by_length)}
    for number, (topic, before, after) in enumerate(found):
        entry = {"instruction": f"Continue Python's manual on {topic}.", "input": before, "output": after}
        yield f"Python's manual: paragraph {number + 1}", {**entry, difficulty_field: level[number]}


def _messages(entry: Mapping[str, Any], place: str) -> tuple[Message, ...]:
    if entry.get("messages") is not None:
        return _checked(entry["messages"], place, "messages")
    if "prompt" in entry and "completion" in entry:
        prompt, completion = entry["prompt"], entry["completion"]
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        if not isinstance(prompt, list) or not isinstance(completion, list):
            raise DataError(f"{place}: prompt and completion are texts, or lists of messages")
        return _checked([*prompt, *completion], place, "completion")
    if "instruction" in entry and "output" in entry:
        texts = {key: entry.get(key) or "" for key in ("instruction", "input", "output")}
        for key, text in texts.items():
            if not isinstance(text, str):
                raise DataError(f"{place}: {key}: {str(text)[:60]!r} is no text")
        asked = "\n".join(text for text in (texts["instruction"], texts["input"]) if text)
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": texts["output"]}]
        return _checked(turns, place, "output")
    near = {key: known for key in entry if key not in _KNOWN and (known := nearest(str(key), _KNOWN))}
    hint = "".join(f"; did you mean {known} for {key}?" for key, known in near.items())
    raise DataError(f"{place}: has the keys {', '.join(map(str, entry)) or 'none'}; an example is {FORMS}{hint}")


def _checked(turns: Any, place: str, key: str) -> tuple[Message, ...]:
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{place}: {key}: is no list of {{role, content}}")
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, Mapping) or turn.get("role") not in _ROLES or not isinstance(turn.get("content"), str):
            raise DataError(
                f"{place}: {key}: message {number} is not {{role, content}}, with a text and one of {', '.join(_ROLES)}"
            )
    if turns[-1]["role"] != "assistant" or not turns[-1]["content"].strip():
        raise DataError(f"{place}: {key}: the last message is no answer of the assistant, of which it could be learned")
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)
