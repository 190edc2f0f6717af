"""Read rows of examples in the three usual forms, from files or the Hugging Face hub."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efficientbench.basics.errors import DataError, first_line, nearest
from efficientbench.data_tools.chat.conversations import (
    ASSISTANT,
    ROLES,
    TEXT,
    USER,
    check_learned,
    check_no_history,
    check_no_tools,
    messages_key,
    parse_messages,
    with_system,
)
from efficientbench.data_tools.download.hub_names import is_of_modelscope
from efficientbench.data_tools.rows import CSV_SUFFIXES, FileRows, RowError, attempts, reason_of

Message = dict[str, Any]
FORMS = "{instruction, input, output}, {prompt, completion}, {messages} or {conversations}"
_KNOWN = ("instruction", "input", "output", "prompt", "completion", "messages", "conversations")
DROP_KEY = "data.unusable=drop leaves such rows out, and counts them"
_HUB = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Row:
    """One example before tokenization."""

    messages: tuple[Message, ...]
    """The turns, each with `role` and `content`, and with `loss_weight` 0 if it is not learned; the last is the
    assistant's."""
    difficulty: object
    """The value of the difficulty's column, as in the file; None if the row has none."""
    place: str
    """The row's file and line for messages, like `train.jsonl:17`."""


def read_rows(
    path: str | None, difficulty_field: str, levels: Sequence[str], dropped: Counter[str] | None = None
) -> list[Row]:
    """Return the rows of a file, of a dataset on the hub, or of Python's manual.

    Args:
        path: the configuration's `data.path`; None: Python's manual.
        difficulty_field: the column of the difficulty.
        levels: the names of the levels that the manual's examples get, by the length of their answers.
        dropped: counts unusable rows by reason, which are left out; None: such a row is an error.

    Raises:
        DataError: there is nothing to read, or a row has another form; the message names file, line and key.
    """
    found = _manual(levels, difficulty_field) if path is None else _entries(path)
    rows = []
    for place, entry in found:
        try:
            if isinstance(entry, RowError):
                raise RowError(f"{entry}; an example is {FORMS}")
            rows.append(Row(_messages(entry), entry.get(difficulty_field), place))
        except RowError as error:
            if dropped is None:
                raise DataError(f"{place}: {error}; {DROP_KEY}") from None
            dropped[reason_of(error)] += 1
    if not rows:
        reasons = "".join(f"; left out: {reason}" for reason in dropped or ())
        raise DataError(f"{path}: holds no example{reasons}")
    return rows


def unreadable(path: str) -> str | None:
    """Return why no examples can be at a path; None for a file, and for a name that the hub may have."""
    file = Path(path)
    if file.suffix.lower() in CSV_SUFFIXES:
        return f"data.path: {path} is CSV; a JSON, JSONL or parquet file serves, or the hub's owner/name"
    if file.is_file():
        return None
    if is_of_modelscope(path):
        return (
            f"data.path: `efficientbench-data download {path}` brings its files, of which data.path names the one to "
            "train on: ModelScope does not say which that is"
        )
    if file.exists() or not _HUB.fullmatch(path):
        return f"data.path: {path} is no file; a JSON, JSONL or parquet file serves, or the hub's owner/name"
    return None


def _entries(path: str) -> Iterator[tuple[str, Mapping[str, Any] | RowError]]:
    if reason := unreadable(path):
        raise DataError(reason)
    file = Path(path)
    if not file.is_file():
        yield from _of_hub(path)
        return
    rows = FileRows([file])
    yield from zip(map(rows.place, range(len(rows))), attempts(rows, np.arange(len(rows))), strict=True)


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


def _messages(entry: Mapping[str, Any]) -> tuple[Message, ...]:
    if entry.get(key := messages_key(entry)) is not None:
        check_no_history(entry, key)
        return _checked(entry, entry[key], key)
    if "prompt" in entry and "completion" in entry:
        check_no_history(entry, "prompt")
        prompt, completion = entry["prompt"], entry["completion"]
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        if not isinstance(prompt, list) or not isinstance(completion, list):
            raise RowError("prompt and completion are texts, or lists of messages")
        return _checked(entry, [*prompt, *completion], "completion")
    if "instruction" in entry and "output" in entry:
        texts = {key: entry.get(key) or "" for key in ("instruction", "input", "output")}
        for key, text in texts.items():
            if not isinstance(text, str):
                raise RowError(f"{key}: {str(text)[:60]!r} is no text")
        asked = "\n".join(text for text in (texts["instruction"], texts["input"]) if text)
        turns = [*_history(entry.get("history") or []), [asked, texts["output"]]]
        messages = [
            {"role": role, "content": text}
            for turn in turns
            for role, text in zip((USER, ASSISTANT), turn, strict=True)
        ]
        return _checked(entry, messages, "output")
    near = {key: known for key in entry if key not in _KNOWN and (known := nearest(str(key), _KNOWN))}
    hint = "".join(f"; did you mean {known} for {key}?" for key, known in near.items())
    raise RowError(f"has the keys {', '.join(map(str, entry)) or 'none'}; an example is {FORMS}{hint}")


def _history(value: Any) -> list[list[str]]:
    """Return LLaMA-Factory's `history`: the earlier turns, whose answers are learned like the last one."""
    pairs = value if isinstance(value, list) else [value]
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise RowError(f"history: a list of pairs [question, answer] is needed, it is: {value!r:.60}")
    return pairs


def _checked(entry: Mapping[str, Any], turns: Any, key: str) -> tuple[Message, ...]:
    """Return the turns of a row, in any order that the tokenizer's chat template may take."""
    check_no_tools(entry)
    messages = with_system(entry, parse_messages(turns, key, ROLES))
    if messages[-1].role != ASSISTANT or not messages[-1].text.strip():
        raise RowError(f"{key}: the last message is no answer of the assistant, of which it could be learned")
    check_learned(messages, key)
    if any(part.kind != TEXT for message in messages for part in message.parts):
        raise RowError(f"{key}: it calls the calculator, which chat templates do not know; `data chat` takes such rows")
    weights = [{} if message.supervised else {"loss_weight": 0} for message in messages]
    return tuple(
        {"role": message.role, "content": message.text, **weight}
        for message, weight in zip(messages, weights, strict=True)
    )
