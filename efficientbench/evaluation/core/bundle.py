"""Read the evaluation bundle: `core.yaml`, `eval_meta_data.csv`, and the tasks' rows below `eval_data/`."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from efficientbench.basics.errors import ConfigError, DataError, os_errors_as
from efficientbench.basics.files import sha256
from efficientbench.basics.foreign import parse_yaml, read_text, read_whole
from efficientbench.config.schema import EvaluationConfig

NAMES = (
    *("hellaswag_zeroshot", "jeopardy", "bigbench_qa_wikidata", "arc_easy", "arc_challenge", "copa"),
    *("commonsense_qa", "piqa", "openbook_qa", "lambada_openai", "hellaswag", "winograd", "winogrande"),
    *("bigbench_dyck_languages", "agi_eval_lsat_ar", "bigbench_cs_algorithms", "bigbench_operators"),
    *("bigbench_repeat_copy_logic", "squad", "coqa", "boolq", "bigbench_language_identification"),
)
"""The 22 tasks: `low_variance_datasets` of DCLM's eval/additional_aggregation.json."""

CHOICES, SCHEMA, LANGUAGE = "multiple_choice", "schema", "language_modeling"
KEYS: dict[str, dict[str, type]] = {
    CHOICES: {"query": str, "choices": list, "gold": int},
    SCHEMA: {"context_options": list, "continuation": str, "gold": int},
    LANGUAGE: {"context": str, "continuation": str},
}
"""The keys of a row and their types, by the type of the task."""
ORDER_SEED, SHOTS_SEED = 1337, 1234
"""The reference's seeds: of the order of a task's rows, and, plus the row's number, of a row's shots."""


@dataclass(frozen=True)
class CoreTask:
    """One of the 22 tasks, with its rows."""

    name: str
    kind: str
    """The task's type, a key of KEYS."""
    shots: int
    delimiter: str
    """The text between a question and its answer."""
    baseline: float
    """The accuracy of guessing, 0 to 1."""
    sha256: str
    """The SHA-256 (hex) of the task's file."""
    rows: Sequence[Mapping[str, Any]]
    """The rows in the reference's order, cut to the limit."""

    def examples(self, number: int) -> list[Mapping[str, Any]]:
        """Return a row's shots: other rows, drawn by the reference's random numbers."""
        drawn = random.Random(SHOTS_SEED + number).sample(range(len(self.rows) - 1), self.shots)
        return [self.rows[each + (each >= number)] for each in drawn]


@dataclass(frozen=True)
class Bundle:
    """The tasks of an evaluation bundle."""

    tasks: dict[str, CoreTask]
    """The available tasks by name, in the order of NAMES."""
    absent: dict[str, str]
    """Why a task is missing, by the task's name."""
    baselines_sha256: str
    """The SHA-256 (hex) of `eval_meta_data.csv`, whose editions differ."""


def bundle_of(config: EvaluationConfig) -> Bundle | None:
    """Return the bundle that a training evaluates; None where it evaluates none.

    Raises ConfigError, DataError: as `read_bundle`, or there is no such folder.
    """
    if not config.core_every or config.core_data is None:
        return None
    folder = Path(config.core_data)
    if not folder.is_dir():
        raise ConfigError(f"evaluation.core_data: {folder}: no such folder")
    own = folder / "core"
    return read_bundle(own if own.is_dir() else folder, config.core_limit)


def read_bundle(folder: Path, limit: int | None) -> Bundle:
    """Read a bundle.

    Args:
        folder: the bundle's folder.
        limit: the most rows of each task; None: all. Shots are drawn from these rows, too, as in the reference.

    Raises:
        ConfigError: the folder is not a bundle, has none of the tasks, or has too few rows for a task's shots.
        DataError: a file is damaged.
    """
    listed, baselines = _listed(folder / "core.yaml"), _baselines(folder / "eval_meta_data.csv")
    tasks, absent = {}, {}
    for name in NAMES:
        if name not in listed:
            absent[name] = "core.yaml does not list it"
        elif name not in baselines:
            absent[name] = "eval_meta_data.csv has no random baseline for this task"
        elif (uri := listed[name].get("dataset_uri")) is None:
            raise DataError(f"core.yaml, {name}: dataset_uri is missing: where its rows lie in eval_data/")
        elif (relative := Path(str(uri))).is_absolute() or ".." in relative.parts:
            raise DataError(f"core.yaml, {name}: dataset_uri {uri} leads out of eval_data/")
        elif not os.path.lexists(path := folder / "eval_data" / str(uri)):
            absent[name] = f"eval_data/{uri} is absent"
        else:
            tasks[name] = _task(name, listed[name], baselines[name], path, limit)
    if not tasks:
        raise ConfigError(f"core: {folder} has none of the 22 tasks; {NAMES[0]}: {absent[NAMES[0]]}")
    return Bundle(tasks, absent, sha256(folder / "eval_meta_data.csv"))


def _listed(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a `core.yaml`, by the tasks' names."""
    try:
        content = parse_yaml(read_whole(path))
        return {str(row["label"]): row for row in content["icl_tasks"]}
    except FileNotFoundError:
        raise ConfigError(
            f"core: {path} is missing: --data names the evaluation bundle of DCLM and nanochat (core.yaml, "
            "eval_meta_data.csv, eval_data/), or the folder that holds it as core/"
        ) from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError, KeyError, TypeError) as error:
        raise DataError(f"{path}: it is no list of tasks ({type(error).__name__}: {error})") from None


def _baselines(path: Path) -> dict[str, float]:
    """Return the accuracy of guessing, 0 to 1, by the tasks' names."""
    try:
        rows = csv.DictReader(io.StringIO(read_text(path)))
        percent = {row["Eval Task"]: float(row["Random baseline"]) for row in rows}
        # An accuracy cannot be centred on a baseline of 100.
        if wrong := {name: value for name, value in percent.items() if not 0 <= value < 100}:
            raise ValueError(f"percent from 0 to below 100 are needed: {wrong}")
        return {name: value / 100 for name, value in percent.items()}
    except FileNotFoundError:
        raise ConfigError(f"core: {path} with the random baselines is missing") from None
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise DataError(f"{path}: it has no random baselines ({type(error).__name__}: {error})") from None


def _task(name: str, listed: Mapping[str, Any], baseline: float, path: Path, limit: int | None) -> CoreTask:
    try:
        kind, shots = str(listed["icl_task_type"]), int(listed["num_fewshot"][0])
        delimiter = str(listed.get("continuation_delimiter", " "))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"core.yaml, {name}: {type(error).__name__}: {error}") from None
    if kind not in KEYS:
        raise DataError(f"core.yaml, {name}: icl_task_type {kind!r} is unknown; known: {', '.join(KEYS)}")
    with os_errors_as(DataError, f"{path}: cannot be read"):
        content = read_whole(path)
    rows = [_row(line, kind, f"{path}:{number}") for number, line in enumerate(content.splitlines(), start=1)]
    random.Random(ORDER_SEED).shuffle(rows)
    rows = rows[:limit]
    if len(rows) <= shots:
        cut = limit is not None and limit <= shots
        advice = f"; give --limit {shots + 1} or more (in training: evaluation.core_limit)" if cut else ""
        raise ConfigError(
            f"core: {name} has {len(rows):,} rows{' by --limit' if cut else ''} and needs {shots + 1} ({shots} shots "
            f"and one question): {path}{advice}"
        )
    return CoreTask(name, kind, shots, delimiter, baseline, hashlib.sha256(content).hexdigest(), rows)


def _row(line: bytes, kind: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        for key, wanted in KEYS[kind].items():
            if not isinstance(row[key], wanted):
                raise TypeError(f"{key} is no {wanted.__name__}")
        options = row.get("choices", row.get("context_options"))
        if options is not None and not 0 <= row["gold"] < len(options):
            raise ValueError(f"gold is {row['gold']}, of {len(options)} choices")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{place}: it is no row of a {kind} task ({type(error).__name__}: {error})") from None
    return dict(row)
