"""Compare the evaluations of two runs, paired by item: both models' results on the same prompts.

Two accuracies alone hide that both models see the same items. For right and wrong answers, the exact McNemar test asks
whether one model alone is right more often than the other alone. For losses of documents, and for scores of questions
that were answered several times, Student's t test takes the differences by item. A verdict is about two checkpoints: it
says nothing about other seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.basics.foreign import parse_json, plain_texts, read_whole
from efficientbench.metrics.formulas.ratio import SIGNIFICANCE, holm
from efficientbench.metrics.formulas.student import Z_95, t_p_value, t_quantile_95
from efficientbench.metrics.records.evaluation import read_evaluation

FOLDER = "evaluation"
"""Folder below a run's that holds `<task>.jsonl`, whose first line is a header."""
LOSS, CORE, LM_EVAL = "loss", "core", "lm_eval_"
"""Names of tasks; LM_EVAL is the prefix of lm-eval's tasks."""
BITS = "loss, bits per byte"
"""Name of the figure that restates a loss in another unit."""
CENTRED = "centred"
"""Unit of CORE: accuracy, of which chance is 0 and all right is 1."""
FILES = "files_sha256"
"""A setting that may differ: the same questions may lie in other files, and are paired by their prompts."""
MOST_BYTES = 1 << 32
MOST, MOST_TOKENS = 1e100, 1 << 53
"""Limits of a sum of losses or a score, and of an item's tokens, so that no square in the tests overflows."""

Item = Mapping[str, Any]


@dataclass(frozen=True)
class Paired:
    """A figure of two runs over the items that both evaluated."""

    name: str
    unit: str
    items: int
    unpaired: int
    """Number of items that only one run evaluated, or that the runs prompted differently."""
    first: float
    second: float
    difference: float
    """Second minus first."""
    low: float
    high: float
    """Upper end of the difference's 95 % interval, whose lower end is `low`."""
    p: float
    """P value of the difference, corrected for all figures together (Holm)."""

    @property
    def verdict(self) -> str:
        return "checkpoints differ" if self.p < SIGNIFICANCE else "no difference shown"


@dataclass(frozen=True)
class Evaluations:
    """The evaluations that two folders of runs have in common."""

    paired: tuple[Paired, ...]
    notes: tuple[str, ...]
    """What is not paired, or was evaluated with other settings, and why."""


def pair_evaluations(first: Path, second: Path) -> Evaluations:
    """Return the paired figures of all tasks whose results both folders of runs hold.

    Raises MetricsError if a file of results cannot be read.
    """
    found, notes = _pair(first, second, (FILES,))
    return Evaluations(tuple(_corrected(found)), (*_of_repeats(first), *_of_repeats(second), *notes))


def pair_stages(folders: Sequence[Path]) -> list[Evaluations]:
    """Return the paired figures of each folder of a run and the next one, as `pair_each`; their steps may differ."""
    return pair_each(itertools.pairwise(folders), (FILES, "step"))


def pair_each(pairs: Iterable[tuple[Path, Path]], may_differ: Collection[str] = (FILES,)) -> list[Evaluations]:
    """Return the paired figures of each two folders of runs; the p values of all of them are corrected together.

    Args:
        pairs: the folders; differences are second minus first.
        may_differ: names of settings that differ without a note.

    Raises MetricsError if a file of results cannot be read.
    """
    found = [_pair(first, second, may_differ) for first, second in pairs]
    corrected = iter(_corrected([each for paired, _ in found for each in paired]))
    return [Evaluations(tuple(itertools.islice(corrected, len(paired))), tuple(notes)) for paired, notes in found]


def _pair(first: Path, second: Path, may_differ: Collection[str]) -> tuple[list[Paired], list[str]]:
    """Return the figures of two runs, not yet corrected, and the notes; `may_differ` has settings without a note."""
    found: list[Paired] = []
    notes: list[str] = []
    for path in sorted((first / FOLDER).glob("*.jsonl")):
        other = second / FOLDER / path.name
        if not other.is_file():
            continue
        (header, ours), (their_header, theirs) = read_items(path), read_items(other)
        notes += _differences(path.stem, header, their_header, may_differ)
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
            found += _bits([one for one, _ in pairs.values()], sums)
            continue
        answers = _answers(path.stem, pairs, unpaired)
        found += _core(first, second, answers) if path.stem == CORE else []
        found += answers
    return found, notes


def _of_repeats(folder: Path) -> list[str]:
    """Return a note if the repeats below a folder were evaluated, but no run in the folder itself."""
    repeats = sorted(path.parent for path in folder.glob(f"seed_*/{FOLDER}") if any(path.glob("*.jsonl")))
    if not repeats or (folder / FOLDER).is_dir():
        return []
    return [f"{folder}: evaluations of repeats are not paired: compare those of one each, as {repeats[0]}"]


def _differences(
    task: str, header: Mapping[str, Any], other: Mapping[str, Any], may_differ: Collection[str]
) -> list[str]:
    """Return a note that names the step and the settings in which two evaluations of a task differ."""
    ours, theirs = ({"step": each.get("step"), **each["settings"]} for each in (header, other))
    shown = []
    for key in ours | theirs:
        values = [each.get(key) for each in (ours, theirs)]
        if key not in may_differ and values[0] != values[1]:
            # Some settings are long lists, of which the note has the name alone.
            short = all(isinstance(value, int | float | None) for value in values)
            shown.append(f"{key} {values[0]} and {values[1]}" if short else key)
    return [f"{task}: A and B were evaluated otherwise: {', '.join(shown)}"] if shown else []


def read_items(path: Path) -> tuple[Mapping[str, Any], dict[str, Item]]:
    """Return the header of a file of results, and its items by name; skip a torn last line.

    Raises MetricsError if the file cannot be read, or if another line is damaged.
    """
    with os_errors_as(MetricsError, f"{path}: cannot be read"):
        lines = read_whole(path, MOST_BYTES).split(b"\n")[:-1]
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


def _bits(items: Sequence[Item], sums: Sequence[tuple[float, float]]) -> list[Paired]:
    """Return the bits per byte of the same documents; nothing where their bytes are not known."""
    sizes = [item.get("utf8_bytes") for item in items]
    known = [size for size in sizes if isinstance(size, int) and 0 <= size <= MOST_TOKENS]
    if len(known) < len(sizes) or not any(known):
        return []
    bits = [(one / math.log(2), other / math.log(2)) for one, other in sums]
    return _means(BITS, "bits", bits, known, 0)


def _answers(task: str, pairs: Mapping[str, tuple[Item, Item]], unpaired: int) -> list[Paired]:
    """Return a task's accuracies: one for each task of CORE, one for each filter of an lm-eval task, else one."""
    parts: dict[str, list[tuple[Item, Item]]] = {}
    for name, pair in pairs.items():
        if all(isinstance(each.get("right"), bool) for each in pair):
            before, _, behind = name.partition("/")
            part = before if task == CORE else behind if task.startswith(LM_EVAL) else ""
            parts.setdefault(f"{task}: {part}" if part else task, []).append(pair)
    found: list[Paired] = []
    for part, of_part in parts.items():
        scores = [(_scores(one), _scores(other)) for one, other in of_part]
        # Unpaired items count once, however many parts there are.
        count = 0 if found else unpaired
        if any(len(one) > 1 or len(other) > 1 for one, other in scores):
            means = [(fmean(one), fmean(other)) for one, other in scores]
            found += _means(part, "right", means, [1] * len(means), count)
        else:
            found.append(_accuracy(part, [(one["right"], other["right"]) for one, other in of_part], count))
    return found


def _core(first: Path, second: Path, tasks: Sequence[Paired]) -> list[Paired]:
    """Return CORE of two runs over the paired items of its tasks; nothing where a summary has none or a task no pair.

    Its tasks are no sample of tasks: the interval and the p value are over their items, by the normal distribution.
    Raises MetricsError: a summary cannot be read.
    """
    paths = [folder / FOLDER / f"{CORE}.json" for folder in (first, second)]
    if not all(path.is_file() for path in paths):
        return []
    try:
        ours, theirs = map(read_evaluation, paths)
        if None in (ours["figures"][CORE], theirs["figures"][CORE]):
            return []
        parts = {f"{CORE}: {name}": part for name, part in ours["parts"].items() if isinstance(part, dict)}
        chances = {name: float(part["baseline"]) for name, part in parts.items() if "baseline" in part}
        if not all(0 <= chance < 1 for chance in chances.values()):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise MetricsError(f"{paths[0]}, {paths[1]}: one of them is no summary of {CORE}") from None
    if not tasks or chances.keys() != {each.name for each in tasks}:
        return []
    found = [(each, chances[each.name], 1 - chances[each.name]) for each in tasks]
    before = fmean((each.first - chance) / span for each, chance, span in found)
    after = fmean((each.second - chance) / span for each, chance, span in found)
    margin = math.hypot(*((each.high - each.low) / 2 / span for each, _, span in found)) / len(found)
    difference, items = after - before, sum(each.items for each in tasks)
    low, high = difference - margin, difference + margin
    p = 2 * NormalDist().cdf(-abs(difference) / margin * Z_95) if margin else float(difference == 0)
    return [Paired(CORE, CENTRED, items, 0, before, after, difference, low, high, p)]


def _scores(item: Item) -> list[float]:
    """Return the scores of a question's samples; for a question without samples, 1 if it is right, else 0."""
    return [float(score) for score in item.get("scores") or [item["right"]]]


def _accuracy(name: str, rights: Sequence[tuple[bool, bool]], unpaired: int) -> Paired:
    """Return two accuracies and their difference, with Agresti's and Min's interval (Statistics in Medicine 24, 2005).

    `rights` says of each item whether the first run and whether the second run has it right.
    """
    count = len(rights)
    only_first = sum(one and not other for one, other in rights)
    only_second = sum(other and not one for one, other in rights)
    # Agresti and Min add half an item to each of the four cells.
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
    """Return the exact two-sided p value of McNemar's test that either run alone is right equally often."""
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
        name: the figure's name.
        unit: the figure's unit.
        sums: the first and the second run's sum for each item.
        weights: how many values each item's sum adds up, such as its tokens.
        unpaired: the number of items without a partner, as in `Paired`.
    """
    total, count = sum(weights), len(sums)
    if count < 2:
        return []
    difference = sum(other - one for one, other in sums) / total
    # The variance of a ratio of two sums over items, to first order.
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
    """Return the figures with p values by Holm's correction (Scandinavian Journal of Statistics 6, 1979).

    Bits per byte restate the loss before them.
    """
    same = {str(place): str(place - 1) for place, each in enumerate(found) if each.name == BITS}
    adjusted = holm({str(place): each.p for place, each in enumerate(found)}, same)
    return [replace(each, p=adjusted[str(place)]) for place, each in enumerate(found)]
