"""Select the runs of a sweep: names of the matrix, axes `key=value,value`, and a file name for each combination.

`launch` selects runs on machines without torch: nothing here may import it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from efficientbench.config.errors import ConfigError, nearest
from efficientbench.config.load import resolve, settable_keys, unknown_key
from efficientbench.config.matrix import MATRIX, Matrix, RunName, load_matrix
from efficientbench.config.registry import SECTIONS, load, load_named
from efficientbench.config.schema import MOST_LABEL, RunConfig
from efficientbench.config.words import ALIASES

_NOT_SWEPT = {
    "output": "the sweep's own state lies below it: give one folder, as output=FOLDER",
    "label": "the sweep gives each combination its own",
    "training.micro_batch_size_asked": "a retry sets it: sweep training.micro_batch_size",
}
"""Keys that the sweep itself sets, and why an axis cannot."""
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9._+-]*[a-z0-9])?")
_MOST_VALUE = 32
"""Most characters of a value in a label."""


@dataclass(frozen=True)
class Request:
    """The runs that a sweep is to do."""

    matrix: Path = MATRIX
    only: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    """As `key=value,value`."""
    overrides: tuple[str, ...] = ()
    """As `key=value`, for every run; not part of any name."""
    smoke: bool = False
    repeat: int | None = None
    retry_smaller: bool = False
    """Whether a run that is out of memory is tried again with a smaller micro-batch."""
    generate: bool = False
    """Whether generation with each trained model is measured too."""


@dataclass(frozen=True)
class Combination:
    """One run of the matrix with one value of each axis."""

    name: str
    """Of the run in the matrix."""
    overrides: tuple[str, ...]
    """As `key=value`: those of all runs, and this combination's."""
    config: RunConfig
    """With the label; of a refused one only as much as names its folder."""
    refused: str | None = None
    """Why the configuration is refused."""

    @property
    def labelled(self) -> tuple[str, ...]:
        """The overrides and the label: they configure the same run without the sweep."""
        label = self.config.label
        return self.overrides if label is None else (*self.overrides, f"label={label}")


def chosen_combinations(request: Request, name: str | None = None) -> list[Combination]:
    """Return every run that the request chooses, in the order of the matrix and the axes.

    `name`: of this run of the matrix alone.

    Raises:
        ConfigError: names or axes that mean nothing, or repeats of an axis of seeds. A configuration that is refused is
            returned with its reason.
    """
    matrix = load_matrix(request.matrix)
    _load_variants(request, matrix)
    axes = parse_axes(request.axes)
    if request.repeat is not None and "training.seed" in axes:
        raise ConfigError("--set training.seed: --repeat gives each run its seeds; leave out one of the two")
    runs = select(matrix, request.only, request.sizes) if name is None else [matrix.run(name)]
    found: dict[str, Combination] = {}
    for run in runs:
        for values in itertools.product(*axes.values()):
            combination = _resolved(request, run.name, dict(zip(axes, values, strict=True)))
            # Two texts of one value (1e-3, 0.001) are one run.
            found.setdefault(combination.config.name, combination)
    return list(found.values())


def _load_variants(request: Request, matrix: Matrix) -> None:
    """Load the variants from outside this project that the request or its matrix names: axes may be of their keys."""
    for variant in matrix.variants.values():
        load_named(variant)
    for section in SECTIONS:
        key = f"model.{section}.kind="
        for text in (*request.axes, *request.overrides):
            for kind in text.removeprefix(key).split(",") if text.startswith(key) else ():
                load(section, kind)


def _resolved(request: Request, name: str, values: dict[str, str]) -> Combination:
    overrides = (*request.overrides, *(f"{key}={value}" for key, value in values.items()))
    refused = None
    try:
        config = resolve(name, request.smoke, overrides, request.matrix)
    except ConfigError as error:
        # Its reason is written into the run's folder, which these two keys decide.
        places = [override for override in request.overrides if override.startswith(("output=", "label="))]
        config = resolve(name, request.smoke, places, request.matrix)
        refused = str(error)
    label = label_of(values, None if refused else config, config.label)
    return Combination(name, overrides, config.model_copy(update={"label": label}), refused)


def select(matrix: Matrix, only: Sequence[str] = (), sizes: Sequence[str] = ()) -> list[RunName]:
    """Return the runs of these names and sizes, in the order of the matrix.

    Without names they are those of `Matrix.suites`, without sizes those of every size.

    A name is that of a run, a variant or a suite, or the first argument of a suite's: `attention` for
    `attention_variants`. A variant has the sizes of its suites, and any size of no suite that is named; one of no suite
    needs sizes.

    Raises:
        ConfigError: an unknown name or size, or a size that no chosen run has.
    """
    problems = [problem for name in only if (problem := _unknown_name(name, matrix, sizes))]
    known = dict.fromkeys([*matrix.sizes, *(run.size for run in matrix.all_runs)])
    for size in sizes:
        if size not in known:
            near = nearest(size, known)
            hint = f"did you mean {near}?" if near else f"the sizes are {', '.join(known)}"
            problems.append(f"--sizes: there is no size called {size[:80]!r}: {hint}")
    if problems:
        raise ConfigError(problems)
    named = dict.fromkeys(run for name in only for run in _runs_called(name, matrix, sizes))
    in_suites = {run: place for place, run in enumerate(matrix.all_runs)}
    chosen = sorted(named, key=lambda run: in_suites.get(run, len(in_suites))) if only else list(matrix.runs)
    left = [run for run in chosen if not sizes or run.size in sizes]
    lacking = [size for size in sizes if size not in {run.size for run in left}]
    if lacking:
        there = ", ".join(dict.fromkeys(run.size for run in chosen))
        raise ConfigError(f"--sizes: no chosen run has the size {' or '.join(lacking)}; theirs are {there}")
    return left


def _runs_called(name: str, matrix: Matrix, sizes: Sequence[str] = ()) -> list[RunName]:
    found = [run for run in matrix.all_runs if name in (run.name, run.variant, run.suite)]
    if name in matrix.variants:
        # A variant of a suite is not taken in the size of another one, which may be of experts.
        taken = {run.size for run in matrix.all_runs} if found else set()
        found += [matrix.run(f"{name}_{size}") for size in sizes if size not in taken]
    if not found and matrix.in_no_suite(name):
        return [matrix.run(name)]
    return found or [run for run in matrix.all_runs if name and run.suite.startswith(f"{name}_")]


def _unknown_name(name: str, matrix: Matrix, sizes: Sequence[str]) -> str | None:
    if _runs_called(name, matrix, [size for size in sizes if size in matrix.sizes]):
        return None
    if name in matrix.variants:
        return f"--only: {name} is in no suite: name its sizes by --sizes, like 1.5B"
    runs = matrix.all_runs
    names = [each for run in runs for each in (run.name, run.variant, run.suite, run.suite.partition("_")[0])]
    near = nearest(name, names)
    known = ", ".join(dict.fromkeys(run.suite for run in runs))
    hint = f"did you mean {near}?" if near else f"name a run, a variant, or one of the suites {known}"
    return f"--only: no run, variant or suite is called {name[:80]!r}: {hint}"


def parse_axes(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse texts like `training.seq_len=1024,2048` into each key's values, sorted by key.

    A comma separates values, but not inside brackets or braces: a list is one value.

    Raises:
        ConfigError: with every mistake at once.
    """
    keys, problems = settable_keys(), []
    axes: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, separator, values = text.partition("=")
        key = ALIASES.get(key, key)
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
        text = chosen[key] if config is None else _text(attrgetter(key)(config))
        parts.append(f"{_short_names(tuple(settable_keys()))[key]}={_safe(text)}")
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
    """Map each key to its shortest ending that no other key has: seq_len, but attention.kind."""

    def endings(key: str) -> list[str]:
        parts = key.split(".")
        return [".".join(parts[first:]) for first in reversed(range(len(parts)))]

    counts = Counter(ending for key in keys for ending in endings(key))
    return {key: next(ending for ending in endings(key) if counts[ending] == 1) for key in keys}
