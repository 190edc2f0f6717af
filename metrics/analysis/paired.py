"""Evaluations of two runs, paired by item: the same prompts, and what each model made of them.

Two accuracies alone hide that both models see the same items. Of right and wrong the exact McNemar test asks whether
the items that only one has right are more often the other's. Losses of documents are paired by document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.foreign import parse_json, read_whole

FOLDER = "evaluation"
"""Of a run's folder: `<task>.jsonl`, whose first line is a header."""
LOSS, CORE = "loss", "core"
SIGNIFICANCE = 0.05
TWO_SIDED_95 = 1.959964
"""Standard errors on each side of a 95 % interval."""
MOST_BYTES = 1 << 32

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
        return "differs" if self.p < SIGNIFICANCE else "no difference shown"


def pair_evaluations(first: Path, second: Path) -> list[Paired]:
    """Return the figures of all tasks that both folders of runs hold the results of.

    Raises MetricsError: a file of results cannot be read.
    """
    found: list[Paired] = []
    for path in sorted((first / FOLDER).glob("*.jsonl")):
        other = second / FOLDER / path.name
        if not other.is_file():
            continue
        ours, theirs = read_items(path), read_items(other)
        pairs = {
            name: (item, theirs[name])
            for name, item in ours.items()
            if name in theirs and item.get("prompt_sha256") == theirs[name].get("prompt_sha256")
        }
        unpaired = len(ours.keys() | theirs.keys()) - len(pairs)
        if path.stem == LOSS:
            found += _losses(list(pairs.values()), unpaired)
        else:
            found += _rights(path.stem, pairs, unpaired)
    return _corrected(found)


def read_items(path: Path) -> dict[str, Item]:
    """Return the items of a file of results by their names; a torn last line is left out.

    Raises MetricsError: it cannot be read, or another line is damaged.
    """
    try:
        lines = read_whole(path, MOST_BYTES).split(b"\n")[1:-1]
    except OSError as error:
        raise MetricsError(f"{path}: cannot be read ({error.strerror})") from None
    items = {}
    for number, line in enumerate(lines, start=2):
        try:
            item = parse_json(line)
            items[str(item["item"])] = item
            if path.stem == LOSS and (int(item["tokens"]) < 1 or not math.isfinite(float(item["loss_sum"]))):
                raise ValueError
        except (ValueError, TypeError, KeyError, OverflowError):
            raise MetricsError(f"{path}, line {number}: it is no result of an item") from None
    return items


def _rights(task: str, pairs: Mapping[str, tuple[Item, Item]], unpaired: int) -> list[Paired]:
    """Return the accuracies of a task; of CORE that of each of its tasks."""
    parts: dict[str, list[tuple[bool, bool]]] = {}
    for name, (one, other) in pairs.items():
        if isinstance(one.get("right"), bool) and isinstance(other.get("right"), bool):
            part = f"{task}: {name.partition('/')[0]}" if task == CORE else task
            parts.setdefault(part, []).append((one["right"], other["right"]))
    # Counted once, however many parts there are.
    counts = [unpaired, *[0] * len(parts)]
    return [_accuracy(part, rights, count) for (part, rights), count in zip(parts.items(), counts, strict=False)]


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
        low=max(centre - TWO_SIDED_95 * error, -1),
        high=min(centre + TWO_SIDED_95 * error, 1),
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


def _losses(pairs: Sequence[tuple[Item, Item]], unpaired: int) -> list[Paired]:
    """Return the mean losses per token; nothing where the documents have other tokens, or there are fewer than two."""
    if len(pairs) < 2 or any(one.get("tokens") != other.get("tokens") for one, other in pairs):
        return []
    tokens = [int(one["tokens"]) for one, _ in pairs]
    sums = [(float(one["loss_sum"]), float(other["loss_sum"])) for one, other in pairs]
    total, count = sum(tokens), len(pairs)
    difference = sum(other - one for one, other in sums) / total
    # Of a ratio of two sums over documents.
    squares = sum((other - one - difference * size) ** 2 for (one, other), size in zip(sums, tokens, strict=True))
    error = math.sqrt(squares * count / (count - 1)) / total
    p = math.erfc(abs(difference) / error / math.sqrt(2)) if error else float(difference == 0)
    return [
        Paired(
            name="loss, nats per token",
            unit="nats",
            items=count,
            unpaired=unpaired,
            first=sum(one for one, _ in sums) / total,
            second=sum(other for _, other in sums) / total,
            difference=difference,
            low=difference - TWO_SIDED_95 * error,
            high=difference + TWO_SIDED_95 * error,
            p=p,
        )
    ]


def _corrected(found: Sequence[Paired]) -> list[Paired]:
    """Return the figures with Holm's p-values (Scandinavian Journal of Statistics 6, 1979)."""
    largest, by_place = 0.0, {}
    for rank, place in enumerate(sorted(range(len(found)), key=lambda place: found[place].p)):
        largest = max(largest, min(1.0, (len(found) - rank) * found[place].p))
        by_place[place] = largest
    return [replace(each, p=by_place[place]) for place, each in enumerate(found)]
