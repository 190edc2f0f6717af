"""Axes of a sweep: `key=value,value`, their combinations, and names for these that any file system takes."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from efficientbench.config.errors import ConfigError
from efficientbench.config.load import settable_keys, unknown_key
from efficientbench.config.schema import MOST_LABEL, RunConfig

# Of these the sweep itself decides, or its own state lies there.
_NOT_SWEPT = {
    "output": "the sweep's own state lies below it: give one folder, as output=FOLDER",
    "label": "the sweep gives each combination its own",
    "training.micro_batch_size_asked": "it tells what a retry replaced: sweep training.micro_batch_size",
}
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9._+-]*[a-z0-9])?")
_MOST_VALUE = 32
"""Characters of a value that a name shows."""


@dataclass(frozen=True)
class Axis:
    """One key of the configuration and the values that it takes in turn, as texts."""

    key: str
    values: tuple[str, ...]


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """The axes that texts like `training.seq_len=1024,2048` describe, by key.

    A comma separates values, but not inside brackets or braces, so that a list is one value. Raises ConfigError with
    every mistake at once.
    """
    keys, problems = settable_keys(), []
    axes: dict[str, Axis] = {}
    for text in texts:
        key, separator, values = text.partition("=")
        split = _split(values)
        if not separator:
            problems.append(f"--set {text[:80]!r}: an axis is written key=value,value, like training.seq_len=1024,2048")
        elif key not in keys:
            problems.append(f"--set {unknown_key(key, keys)}")
        elif key in _NOT_SWEPT:
            problems.append(f"--set {key}: cannot be swept: {_NOT_SWEPT[key]}")
        elif key in axes:
            problems.append(f"--set {key}: is given twice; name all its values at once, separated by commas")
        elif split is None:
            problems.append(f"--set {key}: brackets are not closed in {values[:80]!r}")
        elif "" in split:
            problems.append(f"--set {key}: {values[:80]!r} has an empty value; to unset a key write null")
        else:
            axes[key] = Axis(key, tuple(dict.fromkeys(split)))
    if problems:
        raise ConfigError(problems)
    return [axes[key] for key in sorted(axes)]


def _split(text: str) -> list[str] | None:
    """The values between commas that no bracket encloses; None where brackets do not match."""
    values, depth, begin = [], 0, 0
    for index, character in enumerate(text):
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            values.append(text[begin:index])
            begin = index + 1
        if depth < 0:
            return None
    return None if depth else [*values, text[begin:]]


def combinations(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    """Every combination of the axes' values, the last axis fastest; a single empty one where there are no axes."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.key for axis in axes), values, strict=True))


def label_of(chosen: Mapping[str, str], config: RunConfig | None, first: str | None = None) -> str | None:
    """The name of a combination, as `seq_len=2048__tp=2`, after the label that all have; None where there is neither.

    The same values give the same name, however they were written (1e-3, 0.001) and in whichever order. It is made of
    letters, digits and `._+=~-`; a value with anything else, or with capitals, which some file systems do not tell
    from small letters, is shortened and followed by a part of its hash. Without a configuration (it was refused) the
    texts are taken as they are.
    """
    if not chosen:
        return first
    parts = [first] if first else []
    for key in sorted(chosen):
        text = chosen[key] if config is None else _text(_value(config, key))
        parts.append(f"{_short_names()[key]}={_safe(text)}")
    label = "__".join(parts)
    return label if len(label) <= MOST_LABEL else f"{label[: MOST_LABEL - 9].rstrip('._+=~-')}~{_hash(label)}"


def _value(config: RunConfig, key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return f"[{','.join(map(_text, value))}]"
    return repr(value) if isinstance(value, float) else str(value)


def _safe(text: str) -> str:
    if _PLAIN.fullmatch(text) and len(text) <= _MOST_VALUE:
        return text
    shown = re.sub(r"[^A-Za-z0-9._+-]+", "-", text)[:_MOST_VALUE].strip("._+-")
    return f"{shown}~{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


@lru_cache(maxsize=1)
def _short_names() -> dict[str, str]:
    """Key → the shortest of its endings that no other key has: seq_len, but attention.kind."""
    keys = list(settable_keys())
    names = {}
    for key in keys:
        steps = key.split(".")
        endings = [".".join(steps[first:]) for first in range(len(steps) - 1, -1, -1)]
        names[key] = next(
            ending
            for ending in endings
            if not any(f".{other}".endswith(f".{ending}") for other in keys if other != key)
        )
    return names
