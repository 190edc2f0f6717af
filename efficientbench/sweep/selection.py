"""Select the runs of a sweep: names of the matrix, axes `key=value,value`, and a file name for each combination."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from efficientbench.config.errors import ConfigError, nearest
from efficientbench.config.load import settable_keys, unknown_key
from efficientbench.config.matrix import Matrix, RunName
from efficientbench.config.schema import MOST_LABEL, RunConfig

_NOT_SWEPT = {
    "output": "the sweep's own state lies below it: give one folder, as output=FOLDER",
    "label": "the sweep gives each combination its own",
    "training.micro_batch_size_asked": "a retry sets it: sweep training.micro_batch_size",
}
"""Keys that the sweep itself sets, and why an axis cannot."""
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9._+-]*[a-z0-9])?")
_MOST_VALUE = 32
"""Most characters of a value in a label."""


def select(matrix: Matrix, only: Sequence[str] = (), sizes: Sequence[str] = ()) -> list[RunName]:
    """Return the runs of these names and sizes, in the order of the matrix; an empty sequence selects all.

    A name is that of a run, a variant or a suite, or the first argument of a suite's: `attention` for
    `attention_variants`.

    Raises:
        ConfigError: an unknown name or size, or no run that has both.
    """
    problems = [problem for name in only if (problem := _unknown_name(name, matrix))]
    for size in sizes:
        if size not in matrix.sizes:
            near = nearest(size, matrix.sizes)
            hint = f"did you mean {near}?" if near else f"the sizes are {', '.join(matrix.sizes)}"
            problems.append(f"--sizes: there is no size called {size[:80]!r}: {hint}")
    if problems:
        raise ConfigError(problems)
    chosen = [run for run in matrix.runs if not only or any(run in _runs_called(name, matrix) for name in only)]
    left = [run for run in chosen if not sizes or run.size in sizes]
    if not left:
        there = ", ".join(dict.fromkeys(run.size for run in chosen))
        raise ConfigError(f"--sizes: no chosen run has the size {' or '.join(sizes)}; theirs are {there}")
    return left


def _runs_called(name: str, matrix: Matrix) -> list[RunName]:
    exact = [run for run in matrix.runs if name in (run.name, run.variant, run.suite)]
    return exact or [run for run in matrix.runs if name and run.suite.startswith(f"{name}_")]


def _unknown_name(name: str, matrix: Matrix) -> str | None:
    if _runs_called(name, matrix):
        return None
    names = [each for run in matrix.runs for each in (run.name, run.variant, run.suite, run.suite.partition("_")[0])]
    near = nearest(name, names)
    known = ", ".join(dict.fromkeys(run.suite for run in matrix.runs))
    hint = f"did you mean {near}?" if near else f"name a run, a variant, or one of the suites {known}"
    return f"--only: no run, variant or suite is called {name[:80]!r}: {hint}"


@dataclass(frozen=True)
class Axis:
    """One key of the configuration and the values that it takes in turn, as texts."""

    key: str
    values: tuple[str, ...]


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """Parse texts like `training.seq_len=1024,2048` into axes, sorted by key.

    A comma separates values, but not inside brackets or braces: a list is one value.

    Raises:
        ConfigError: with every mistake at once.
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
    """Split at commas outside brackets; return None where brackets do not match."""
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
    """Yield every combination of the axes' values, the last axis fastest; one empty combination without axes."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.key for axis in axes), values, strict=True))


def label_of(chosen: Mapping[str, str], config: RunConfig | None, first: str | None = None) -> str | None:
    """Return the label of a combination, like `seq_len=2048__tp=2`; None where there is nothing to name.

    The same values have the same label, however they are written (1e-3, 0.001) and in whichever order. A label has
    lower-case letters, digits and `._+=~-`. A value with other characters is shortened, and a part of its hash is
    appended; capitals count as other characters, since some file systems ignore case.

    Args:
        chosen: the combination, as texts by key.
        config: with these values; None where they were refused: the texts are then used as they are.
        first: the label that all runs of the sweep have; it comes first.
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
    """Map each key to its shortest ending that no other key has: seq_len, but attention.kind."""
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
