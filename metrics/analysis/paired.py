"""Evaluations of two runs, paired by item: the same prompts, and what each model made of them.

Two accuracies alone hide that both models see the same items. Of right and wrong the exact McNemar test asks whether
the items that only one has right are more often the other's. Losses of documents, and scores of questions that were
answered several times, are paired by item. A verdict is one about two checkpoints: it knows nothing of other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import parse_json, plain_texts, read_whole
from efficientbench.metrics.formulas.student import Z_95, t_p_value, t_quantile_95

FOLDER = "evaluation"
"""Of a run's folder: `<task>.jsonl`, whose first line is a header."""
LOSS, CORE, LM_EVAL = "loss", "core", "lm_eval_"
"""Tasks by their names; those of lm-eval begin so."""
FILES = "files_sha256"
"""A setting: the same questions may lie in other files, and are paired by their prompts."""
SIGNIFICANCE = 0.05
MOST_BYTES = 1 << 32
MOST, MOST_TOKENS = 1e100, 1 << 53
"""Of a sum of losses or a score, and of an item's tokens: squares of what follows from them are floats."""

Item = Mapping[str, Any]


@dataclass(frozen=True)
class Paired:
    """A figure of two runs over the items that both were given."""

    name: str
    unit: str
    items: int
    unpaired: int
    """Items that one run alone was given, or that were given otherwise."""
    first: float
    second: float
    difference: float
    """Second less first."""
    low: float
    high: float
    """Of the difference, 95 %."""
    p: float
    """Of no difference; corrected for all figures together (Holm)."""

    @property
    def verdict(self) -> str:
        return "checkpoints differ" if self.p < SIGNIFICANCE else "no difference shown"


@dataclass(frozen=True)
class Evaluations:
    """What two folders of runs hold of the same tasks."""

    paired: tuple[Paired, ...]
    notes: tuple[str, ...]
    """What is not paired, or was not evaluated alike, and why."""


def pair_evaluations(first: Path, second: Path) -> Evaluations:
    """Return the figures of all tasks that both folders of runs hold the results of.

    Raises MetricsError: a file of results cannot be read.
    """
    found: list[Paired] = []
    notes = [note for folder in (first, second) for note in _of_repeats(folder)]
    for path in sorted((first / FOLDER).glob("*.jsonl")):
        other = second / FOLDER / path.name
        if not other.is_file():
            continue
        (header, ours), (their_header, theirs) = read_items(path), read_items(other)
        notes += _differences(path.stem, header, their_header)
        pairs = {
            name: (item, theirs[name])
            for name, item in ours.items()
            if name in theirs and item.get("prompt_sha256") == theirs[name].get("prompt_sha256")
        }
        unpaired = len(ours.keys() | theirs.keys()) - len(pairs)
        if path.stem == LOSS:
            if any(one.get("tokens") != other.get("tokens") for one, other in pairs.values()):
                notes.append("loss: not paired, as the same documents have other tokens")
                continue
            sums = [(float(one["loss_sum"]), float(other["loss_sum"])) for one, other in pairs.values()]
            tokens = [int(one["tokens"]) for one, _ in pairs.values()]
            found += _means("loss, nats per token", "nats", sums, tokens, unpaired)
        else:
            found += _answers(path.stem, pairs, unpaired)
    return Evaluations(tuple(_corrected(found)), tuple(notes))


def _of_repeats(folder: Path) -> list[str]:
    """Return a note where the runs below a folder were evaluated, and not the folder's own."""
    repeats = sorted(path.parent for path in folder.glob(f"seed_*/{FOLDER}") if any(path.glob("*.jsonl")))
    if not repeats or (folder / FOLDER).is_dir():
        return []
    return [f"{folder}: evaluations of repeats are not paired: compare those of one each, as {repeats[0]}"]


def _differences(task: str, header: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return a note that names in which step or settings two evaluations of a task differ."""
    ours, theirs = ({"step": each.get("step"), **each["settings"]} for each in (header, other))
    shown = []
    for key in ours | theirs:
        values = [each.get(key) for each in (ours, theirs)]
        if key != FILES and values[0] != values[1]:
            # Some are long lists.
            short = all(isinstance(value, int | float | None) for value in values)
            shown.append(f"{key} {values[0]} and {values[1]}" if short else key)
    return [f"{task}: A and B were evaluated otherwise: {', '.join(shown)}"] if shown else []


def read_items(path: Path) -> tuple[Mapping[str, Any], dict[str, Item]]:
    """Return the header of a file of results, and its items by their names; a torn last line is left out.

    Raises MetricsError: it cannot be read, or another line is damaged.
    """
    try:
        lines = read_whole(path, MOST_BYTES).split(b"\n")[:-1]
    except OSError as error:
        raise MetricsError(f"{path}: cannot be read ({error.strerror})") from None
    header: Mapping[str, Any] = {"settings": {}}
    items = {}
    for number, line in enumerate(lines, start=1):
        try:
            content = plain_texts(parse_json(line))
            if number == 1:
                header = {**content, "settings": dict(content.get("settings") or {})}
                continue
            items[str(content["item"])] = content
            if not all(abs(score) <= MOST for score in content.get("scores") or ()):
                raise ValueError
            if path.stem == LOSS and not (
                0 < int(content["tokens"]) <= MOST_TOKENS and abs(content["loss_sum"]) <= MOST
            ):
                raise ValueError
        except (ValueError, TypeError, KeyError, OverflowError):
            raise MetricsError(f"{path}, line {number}: it is no result of an item") from None
    return header, items


def _answers(task: str, pairs: Mapping[str, tuple[Item, Item]], unpaired: int) -> list[Paired]:
    """Return the accuracies of a task; of CORE that of each of its tasks, of lm-eval's that of each filter."""
    parts: dict[str, list[tuple[Item, Item]]] = {}
    for name, pair in pairs.items():
        if all(isinstance(each.get("right"), bool) for each in pair):
            before, _, behind = name.partition("/")
            part = before if task == CORE else behind if task.startswith(LM_EVAL) else ""
            parts.setdefault(f"{task}: {part}" if part else task, []).append(pair)
    found: list[Paired] = []
    for part, of_part in parts.items():
        scores = [(_scores(one), _scores(other)) for one, other in of_part]
        # Counted once, however many parts there are.
        count = 0 if found else unpaired
        if any(len(one) > 1 or len(other) > 1 for one, other in scores):
            means = [(fmean(one), fmean(other)) for one, other in scores]
            found += _means(part, "right", means, [1] * len(means), count)
        else:
            found.append(_accuracy(part, [(one["right"], other["right"]) for one, other in of_part], count))
    return found


def _scores(item: Item) -> list[float]:
    """Return the scores of a question's samples; of one without any, whether it is right."""
    return [float(score) for score in item.get("scores") or [item["right"]]]


def _accuracy(name: str, rights: Sequence[tuple[bool, bool]], unpaired: int) -> Paired:
    """Return two accuracies and their difference, with Agresti's and Min's interval (Statistics in Medicine 24, 2005).

    `rights`: of each item, whether the first and the second have it right.
    """
    count = len(rights)
    only_first = sum(one and not other for one, other in rights)
    only_second = sum(other and not one for one, other in rights)
    # With half an item more in each of the four cells.
    centre = (only_second - only_first) / (count + 2)
    error = math.sqrt((only_first + only_second + 1) - (only_second - only_first) ** 2 / (count + 2)) / (count + 2)
    return Paired(
        name=name,
        unit="right",
        items=count,
        unpaired=unpaired,
        first=sum(one for one, _ in rights) / count,
        second=sum(other for _, other in rights) / count,
        difference=(only_second - only_first) / count,
        low=max(centre - Z_95 * error, -1),
        high=min(centre + Z_95 * error, 1),
        p=mcnemar(only_first, only_second),
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided exact p-value that both kinds of items that one alone has right are equally frequent."""
    count, fewer = only_first + only_second, min(only_first, only_second)
    term = total = 1
    for number in range(fewer):
        term = term * (count - number) // (number + 1)
        total += term
    return min(1.0, 2 * total / (1 << count)) if count else 1.0


def _means(
    name: str, unit: str, sums: Sequence[tuple[float, float]], weights: Sequence[int], unpaired: int
) -> list[Paired]:
    """Return two means over items and Student's test of their difference; nothing for fewer than two items.

    Args:
        name: of the figure.
        unit: of it.
        sums: of each item, the first run's and the second's.
        weights: what an item's sum is the sum of, as tokens.
        unpaired: as of `Paired`.
    """
    total, count = sum(weights), len(sums)
    if count < 2:
        return []
    difference = sum(other - one for one, other in sums) / total
    # Of a ratio of two sums over items.
    squares = sum((other - one - difference * size) ** 2 for (one, other), size in zip(sums, weights, strict=True))
    error = math.sqrt(squares * count / (count - 1)) / total
    margin = t_quantile_95(count - 1) * error
    return [
        Paired(
            name=name,
            unit=unit,
            items=count,
            unpaired=unpaired,
            first=sum(one for one, _ in sums) / total,
            second=sum(other for _, other in sums) / total,
            difference=difference,
            low=difference - margin,
            high=difference + margin,
            p=t_p_value(difference / error, count - 1) if error else float(difference == 0),
        )
    ]


def _corrected(found: Sequence[Paired]) -> list[Paired]:
    """Return the figures with Holm's p-values (Scandinavian Journal of Statistics 6, 1979)."""
    largest, by_place = 0.0, {}
    for rank, place in enumerate(sorted(range(len(found)), key=lambda place: found[place].p)):
        largest = max(largest, min(1.0, (len(found) - rank) * found[place].p))
        by_place[place] = largest
    return [replace(each, p=by_place[place]) for place, each in enumerate(found)]
