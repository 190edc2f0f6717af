"""The combinations of a sweep: a named run with one value of each axis, and a file name for each combination.

`launch` selects runs on machines without torch: nothing here may import it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

from pydantic.fields import FieldInfo

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.part import MOST_LABEL
from efficientbench.config.load import settable_keys, unknown_key
from efficientbench.config.schema import RunConfig
from efficientbench.config.spellings import ALIASES
from efficientbench.finetuning.config import FinetuneConfig

_NOT_SWEPT = {
    "output": "the sweep's own state lies below it: give one folder, as output=FOLDER",
    "label": "the sweep gives each combination its own",
    "training.micro_batch_size_asked": "a retry sets it: sweep training.micro_batch_size",
}
"""Keys that no axis can set → the reason."""
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9._+-]*[a-z0-9])?")
_MOST_VALUE = 32
"""Most characters of a value in a label."""

Config = TypeVar("Config", RunConfig, FinetuneConfig)


@dataclass(frozen=True)
class Resolver(Generic[Config]):
    """Resolves names to configurations of one kind of run: trainings or fine-tunings."""

    configured: Callable[[str, Sequence[str]], Config]
    """Name and overrides → configuration; raises ConfigError."""
    keys: Mapping[str, FieldInfo]
    """Keys that an override may set."""
    words: Mapping[str, str]
    """Other names of keys."""


@dataclass(frozen=True)
class Combination(Generic[Config]):
    """One named run with one value of each axis."""

    name: str
    """Name of the run without the axes."""
    overrides: tuple[str, ...]
    """Overrides `key=value` of all runs, then of this combination."""
    config: Config
    """The configuration with its label; if it is refused, only with the keys that name its folder."""
    refused: str | None = None
    """Why the configuration is refused."""

    @property
    def labelled(self) -> tuple[str, ...]:
        """The overrides and the label: they configure the same run without the sweep."""
        label = self.config.label
        return self.overrides if label is None else (*self.overrides, f"label={label}")


def combined(
    resolver: Resolver[Config], names: Iterable[str], axes: Mapping[str, Sequence[str]], overrides: Sequence[str]
) -> list[Combination[Config]]:
    """Return each of the named runs with every combination of the axes.

    Args:
        resolver: returns the configurations of this kind of run.
        names: the names of the runs, in order.
        axes: each key's values, as `parse_axes` returns them.
        overrides: the overrides `key=value` of all runs.
    """
    found: dict[str, Combination[Config]] = {}
    for name in names:
        for values in itertools.product(*axes.values()):
            combination = _resolved(resolver, name, dict(zip(axes, values, strict=True)), overrides)
            # Two texts of one value (1e-3, 0.001) are one run.
            found.setdefault(combination.config.name, combination)
    return list(found.values())


def _resolved(
    resolver: Resolver[Config], name: str, values: Mapping[str, str], given: Sequence[str]
) -> Combination[Config]:
    overrides = (*given, *(f"{key}={value}" for key, value in values.items()))
    refused = None
    try:
        config = resolver.configured(name, overrides)
    except ConfigError as error:
        # The reason is written into the run's folder, which these two keys decide.
        words = {override: override.partition("=")[0] for override in given}
        places = [each for each, word in words.items() if resolver.words.get(word, word) in ("output", "label")]
        try:
            config = resolver.configured(name, places)
        except ConfigError as of_matrix:
            raise ConfigError([f"{name}: {problem}" for problem in of_matrix.problems]) from None
        refused = str(error)
    label = label_of(values, None if refused else config, config.label, resolver.keys)
    return Combination(name, overrides, config.model_copy(update={"label": label}), refused)


def parse_axes(
    texts: Sequence[str], known: Mapping[str, FieldInfo] | None = None, words: Mapping[str, str] = ALIASES
) -> dict[str, tuple[str, ...]]:
    """Parse texts like `training.seq_len=1024,2048` into each key's values, sorted by key.

    A comma separates values, but not inside brackets or braces: a list is one value.

    Args:
        texts: the axes.
        known: keys that an axis may name; None: the keys of trainings.
        words: other names of keys.

    Raises:
        ConfigError: an axis is wrong; the message has every mistake.
    """
    keys = settable_keys() if known is None else known
    problems: list[str] = []
    axes: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, separator, values = text.partition("=")
        key = words.get(key, key)
        split = _split(values) or []
        checks = (
            (not separator, f"{text[:80]!r}: an axis is written key=value,value, like training.seq_len=1024,2048"),
            (key not in keys, unknown_key(key, keys)),
            (key in _NOT_SWEPT, f"{key}: cannot be swept: {_NOT_SWEPT.get(key)}"),
            (key in axes, f"{key}: is given twice; name all its values at once, separated by commas"),
            (not split, f"{key}: brackets are not closed in {values[:80]!r}"),
            ("" in split, f"{key}: {values[:80]!r} has an empty value; to unset a key write null"),
        )
        problems += [f"--set {message}" for fails, message in checks if fails][:1]
        axes[key] = tuple(dict.fromkeys(split))
    if problems:
        raise ConfigError(problems)
    return dict(sorted(axes.items()))


def _split(text: str) -> list[str] | None:
    """Split at commas outside brackets; return None if brackets do not match."""
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


def label_of(
    chosen: Mapping[str, str],
    config: RunConfig | FinetuneConfig | None,
    first: str | None = None,
    known: Mapping[str, FieldInfo] | None = None,
) -> str | None:
    """Return the label of a combination, like `seq_len=2048__tp=2`; None where there is nothing to name.

    The same values have the same label, however they are written (1e-3, 0.001) and in whichever order. A label has
    lower-case letters, digits and `._+=~-`. A value with other characters is shortened, and a part of its hash is
    appended; capitals count as other characters, since some file systems ignore case.

    Args:
        chosen: the combination, key → text.
        config: the configuration with these values; None: they were refused, and the texts are used as they are.
        first: the label that all runs of the sweep have; it comes first.
        known: keys that an override may set; None: the keys of trainings.
    """
    if not chosen:
        return first
    short_names = _short_names(tuple(settable_keys() if known is None else known))
    parts = [first] if first else []
    for key in sorted(chosen):
        text = chosen[key] if config is None else _text(attrgetter(key)(config))
        parts.append(f"{short_names[key]}={_safe(text)}")
    label = "__".join(parts)
    return label if len(label) <= MOST_LABEL else f"{label[: MOST_LABEL - 9].rstrip('._+=~-')}~{_hash(label)}"


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


@lru_cache(maxsize=4)
def _short_names(keys: tuple[str, ...]) -> dict[str, str]:
    """Map each key to its shortest ending that no other key has: seq_len, but attention.kind.

    `seed` is training.seed's, as it was before data.seed: folders of earlier runs keep their names.
    """

    def endings(key: str) -> list[str]:
        parts = key.split(".")
        return [".".join(parts[first:]) for first in reversed(range(len(parts)))]

    counts = Counter(ending for key in keys for ending in endings(key))
    counts["seed"] -= "data.seed" in keys
    own = {key: [each for each in endings(key) if counts[each] == 1] for key in keys}
    return {key: key if key == "data.seed" else own[key][0] for key in keys}
