"""Where one model's cost of a new token falls below another's, over the context and over the batch.

A line is a model with weights of one width: its cost over one size, the other sizes fixed. Lines are compared that
differ in one thing, the model or the width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from efficientbench.metrics.analysis.generation import Combination, by_combination, mean_of
from efficientbench.metrics.records.generation.generation import GenerationRecord, GenerationRow

TIME, ENERGY = FIGURES = ("decode_time_s", "decode_energy_j_per_token")
"""The figures whose lines may cross; less of each is better. Energy has no interval."""


@dataclass(frozen=True)
class Point:
    """A cost with its 95 % interval over the requests; without one, its ends are the cost."""

    value: float
    low: float
    high: float

    def apart(self, other: Point) -> bool:
        """Return whether the intervals of two costs do not overlap."""
        return self.high < other.low or other.high < self.low


@dataclass(frozen=True)
class Line:
    """A model with weights of one width."""

    model: str
    width: str
    points: Mapping[str, Mapping[Combination, Point]]
    """Each of FIGURES where it was measured, its mean over the repeats."""

    @property
    def name(self) -> str:
        return self.model if self.width == "none" else f"{self.model} {self.width}"


@dataclass(frozen=True)
class Crossing:
    """Two places between which the order of two lines changes, each beyond the intervals there."""

    figure: str
    before: str
    """The line that costs less at the smaller size."""
    after: str
    axis: str
    """The size that grows: context, in tokens of prompt and answer, or batch."""
    fixed: str
    """The other sizes, in words."""
    low: int
    high: int
    meeting: float
    """Where the lines meet, by straight lines between both places in logarithms."""


def lines_of(records: Sequence[GenerationRecord]) -> dict[str, list[Line]]:
    """Return the lines that were measured alike, by device, dtype and kind of steps."""
    alike: dict[str, dict[tuple[str, str], list[GenerationRecord]]] = {}
    for record in records:
        lines = alike.setdefault(f"{record.device_name}, {record.dtype}, {record.steps} steps", {})
        lines.setdefault((f"{record.run}{' (smoke)' if record.smoke else ''}", record.quantization), []).append(record)
    return {
        where: [Line(*names, _points(by_combination(made))) for names, made in lines.items()]
        for where, lines in alike.items()
    }


def _points(rows: Mapping[Combination, Sequence[GenerationRow]]) -> dict[str, dict[Combination, Point]]:
    found: dict[str, dict[Combination, Point]] = {figure: {} for figure in FIGURES}
    for figure, (combination, repeats) in itertools.product(FIGURES, rows.items()):
        if (mean := mean_of(repeats, figure)) is not None:
            ends = [mean_of(repeats, f"{figure}_ci_{end}") for end in ("low", "high")] if figure == TIME else [None] * 2
            found[figure][combination] = Point(mean, *(mean if end is None else end for end in ends))
    return found


def crossings(lines: Sequence[Line]) -> list[Crossing]:
    """Return the crossings of all lines that differ in the model alone or in the width alone."""
    pairs = itertools.combinations(lines, 2)
    alike = [(one, other) for one, other in pairs if one.model == other.model or one.width == other.width]
    return [each for pair, figure in itertools.product(alike, FIGURES) for each in _of_two(*pair, figure)]


def _of_two(first: Line, second: Line, figure: str) -> Iterator[Crossing]:
    """Yield where the order of two lines changes, of those sizes at which they are apart."""
    one, other = first.points[figure], second.points[figure]
    for axis, fixed, of_axis in _axes(sorted(one.keys() & other.keys())):
        told = [(size, one[at], other[at]) for size, at in sorted(of_axis.items()) if one[at].apart(other[at])]
        for (low, *before), (high, *after) in itertools.pairwise(told):
            gaps = [math.log(ours.value / theirs.value) for ours, theirs in (before, after)]
            if gaps[0] * gaps[1] < 0:
                meeting = low * (high / low) ** (gaps[0] / (gaps[0] - gaps[1]))
                names = (first.name, second.name) if gaps[0] < 0 else (second.name, first.name)
                yield Crossing(figure, *names, axis, fixed, low, high, meeting)


def _axes(combinations: Sequence[Combination]) -> list[tuple[str, str, dict[int, Combination]]]:
    """Return each size that grows while the others are fixed: its name, the others, and size → combination."""
    axes: dict[tuple[str, str], dict[int, Combination]] = {}
    for prompt, batch, new in combinations:
        at = prompt, batch, new
        axes.setdefault(("context", f"batch {batch:,}, {new:,} new"), {})[prompt + new] = at
        axes.setdefault(("batch", f"prompt {prompt:,}, {new:,} new"), {})[batch] = at
    return [(axis, fixed, of_axis) for (axis, fixed), of_axis in axes.items() if len(of_axis) > 1]
