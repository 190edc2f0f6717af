"""Models, widths of weights, contexts and batches on one map: which costs least where, and where two lines cross."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.analysis.crossings import ENERGY, FIGURES, TIME, Crossing, Line, crossings, lines_of
from efficientbench.metrics.analysis.generation import Combination
from efficientbench.metrics.records.generation.generation import GenerationRecord
from efficientbench.metrics.report.table import ABSENT, Table, number

TITLE = "Where lines cross"
LEAST = "Which costs least"
TITLES = {TIME: "time of a step", ENERGY: "J of a token"}
COLUMNS = {
    TIME: ("fastest", "ms a step", "next fastest", "its ms", 1e-3, ",.2f"),
    ENERGY: ("cheapest", "J a token", "next cheapest", "its J", 1.0, ".3g"),
}
"""Figure → the titles of its cells, their unit as a multiple of the record's, and their format."""
LEAST_NOTE = (
    "Decoding with one static batch of this project's own engine: the model and width of least time of a step, which "
    "gives each sequence a token, and of least J. =: the 95 % intervals of both over the requests overlap. Energy has "
    "no interval."
)
CROSSINGS_NOTE = (
    "Lines that differ in the model or in the width alone, over the tokens of prompt and answer or over the batch. The "
    "order is beyond the intervals at both ends; where lines meet is by straight lines in logarithms. No verdict: that "
    "takes repeats of each (compare)."
)
NO_CROSSING = "No two of these lines cross beyond their intervals."


def crossing_tables(records: Sequence[GenerationRecord]) -> list[Table]:
    """Return both tables of each set of lines that were measured alike; none without two lines and two places."""
    tables: list[Table] = []
    alike = lines_of(records)
    for where, lines in alike.items():
        combinations = sorted({combination for line in lines for combination in line.points[TIME]})
        if min(len(lines), len(combinations)) > 1:
            named = f": {where}" if len(alike) > 1 else ""
            tables += [_least(lines, combinations, named), _crossed(crossings(lines), named)]
    return tables


def _least(lines: Sequence[Line], combinations: Sequence[Combination], where: str) -> Table:
    rows = [
        (f"{at[0] + at[2]:,}", f"{at[1]:,}", *(cell for figure in FIGURES for cell in _two_least(lines, at, figure)))
        for at in combinations
    ]
    header = ("context", "batch", *(title for figure in FIGURES for title in COLUMNS[figure][:4]))
    return Table(header, rows, (2, 4, 6, 8), f"{LEAST}{where}", (LEAST_NOTE,))


def _two_least(lines: Sequence[Line], combination: Combination, figure: str) -> list[str]:
    *_, unit, form = COLUMNS[figure]
    points = [(line.name, point) for line in lines if (point := line.points[figure].get(combination))]
    least = sorted(points, key=lambda each: each[1].value)[:2]
    cells: list[str] = []
    for place, (name, point) in enumerate(least):
        level = place == 1 and figure == TIME and not point.apart(least[0][1])
        cells += [f"{'= ' if level else ''}{name}", number(point.value, form, unit)]
    return [*cells, *[ABSENT] * (4 - len(cells))]


def _crossed(found: Sequence[Crossing], where: str) -> Table:
    rows = [
        (
            *(TITLES[each.figure], each.fixed, each.axis, each.before, each.after),
            *(f"{each.low:,}", f"{each.high:,}", f"{each.meeting:,.0f}"),
        )
        for each in found
    ]
    header = ("figure", "at", "over", "less before", "less after", "from", "to", "meet near")
    notes = (CROSSINGS_NOTE,) if rows else (CROSSINGS_NOTE, NO_CROSSING)
    return Table(header, rows, (0, 1, 2, 3, 4), f"{TITLE}{where}", notes)
