"""The first lines of a report: which row of each set is best in a figure, in words, and what stays open.

A difference within the noise is called no difference, and without knowledge of the noise there is no verdict.
`analysis.rivals` has the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from efficientbench.metrics.analysis.conditions import Difference
from efficientbench.metrics.analysis.rivals import QUESTIONS, Standing, better
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, MOST_REPEATS, SIGNIFICANCE, Ratio, repeats_to_tell
from efficientbench.metrics.records.figure import ENERGY_UNITS, scaled
from efficientbench.metrics.report.headline import HEADLINE
from efficientbench.metrics.report.model_sizes import unmatched
from efficientbench.metrics.report.suites import Suite
from efficientbench.metrics.report.table import Table, shortened

TITLES = {
    "energy_j_per_token": "Least energy, J/token",
    "tokens_per_s": "Fastest, tokens/s",
    "amu_gb": "Least memory (AMU), GB",
    "validation_loss": "Lowest validation loss",
}
"""Figure → the title of its answer."""
RULE = (
    f"Verdicts: at {SIGNIFICANCE:.0%} for all pairs of rows of a line together, nearly all of it for the "
    "speed, and for the other figures once a pair's speed differs; between equal models the loss comes first. Spreads "
    "of three rows or more are pooled (Tukey's range). No difference: none beyond the noise between runs."
)
COSTS = {
    "time_to_loss_s": ("time", ((3600.0, "h"), (60.0, "min"), (1.0, "s"))),
    "energy_to_loss_j": ("energy", ENERGY_UNITS),
}
"""Cost to a loss → what it is called, and its units, the largest first."""
_MOST_NAMED = 6
"""Most rows that a sentence names."""

Kind = Literal["clear", "level", "open", "alone", "absent"]


@dataclass(frozen=True)
class Answer:
    """Which row of a set is best in one figure, in words."""

    kind: Kind
    """clear: one row is best by more than noise. level: other rows do not differ from the best. open: no verdict.
    alone: one row has the figure. absent: no row has it."""
    text: str
    detail: str


def answers(suite: Suite) -> list[Answer]:
    """Return the answers of a set, in the order of TITLES."""
    return [answer_to(suite, suite.rivals.standing(metric)) for metric in QUESTIONS]


def answer_to(suite: Suite, standing: Standing) -> Answer:
    """Return which row is best in a figure, or in a cost to a loss (COSTS)."""
    best = standing.best
    if best is None:
        return Answer("absent", "not known", "")
    value = _text(standing.metric, value_of(suite, standing.metric, best))
    if len(standing.unavailable) == len(suite.rows) - 1:
        others = f"{suite.rows[best].name} alone; {_unavailable(suite, standing)}" if len(suite.rows) > 1 else ""
        return Answer("alone", value, others)
    name = suite.rows[best].name
    small = [place for place, ratio in standing.worse.items() if is_small(ratio, suite)]
    large = {place: ratio for place, ratio in standing.worse.items() if place not in small}
    parts = [_beaten(suite, large, best, alone=not (standing.level or standing.open or small))] if large else []
    if standing.open:
        parts.append(f"no verdict against {named(suite, standing.open)}")
    if standing.apart:
        parts.append(f"not compared with {named(suite, standing.apart)}, which ran otherwise")
    if standing.unavailable:
        parts.append(_unavailable(suite, standing))
    if standing.level or small:
        parts += _more_repeats(suite, standing, best) if standing.level else []
        tied = [best, *standing.level, *small]
        ends = list(dict.fromkeys((value, _furthest(suite, standing.metric, tied[1:]))))
        if len({suite.rows[place].record.size for place in tied}) > 1:
            ends = [f"{name}: {value}"]  # a range over models of several sizes is no spread
        alike = f"{named(suite, tied)}: no difference{' that matters' if small else ''}"
        told = [" to ".join(ends), _within(suite, standing, best), *(_too_small(suite, standing, at) for at in small)]
        return Answer("level", alike, "; ".join(filter(None, [*told, *parts])))
    if standing.open or standing.apart:
        extreme = "highest" if better(standing.metric) == "higher" else "lowest"
        return Answer("open", f"no verdict; {extreme} figure: {name}, {value}", "; ".join(parts))
    return Answer("clear", f"{name}: {value}", "; ".join(parts))


def is_small(ratio: Ratio, suite: Suite) -> bool:
    """Return whether a difference of a cost is too small to matter, be it real or not.

    Of a loss each real difference matters: what it is worth is the cost of the same loss.
    """
    return ratio.metric != "validation_loss" and abs(math.log(ratio.ratio)) < math.log1p(suite.matters)


def _too_small(suite: Suite, standing: Standing, place: int) -> str:
    ratio = standing.worse[place]
    limit = f"less than the {suite.matters:.1%} that matters"
    return f"{ratio.change} than {suite.rows[place].name}{_interval(ratio)}, {limit}"


def _beaten(suite: Suite, worse: Mapping[int, Ratio], best: int, alone: bool) -> str:
    """Return by how much the best row is better than the nearest row that is worse by more than noise."""
    nearest = min(worse, key=lambda place: abs(worse[place].ratio - 1))
    others = [place for place in worse if place != nearest]
    own = "" if alone else f"{suite.rows[best].name} "
    further = f", and than {named(suite, others)} by more" if others else ""
    known = "; ".join(dict.fromkeys(ratio.carried for ratio in worse.values() if ratio.carried))
    carried = f" ({known})" if known else ""
    ratio = worse[nearest]
    return f"{own}{ratio.change} than {suite.rows[nearest].name}{_interval(ratio)}{further}{carried}"


def _interval(ratio: Ratio) -> str:
    """Return a ratio's own interval and the repeats of the best row and of the other one."""
    repeats = f"{ratio.runs[1]} and {ratio.runs[0]} runs"
    if ratio.low is None or ratio.high is None:
        return f" ({repeats})"
    low, high = sorted(abs(end - 1) for end in (ratio.low, ratio.high))
    return f" (95 %: {low:.1%} to {high:.1%}; {repeats})"


def _within(suite: Suite, standing: Standing, best: int) -> str:
    """Return the widest interval of the best row over those that do not differ from it, and their repeats."""
    found = [suite.rivals.ratio(standing.metric, place, best) for place in standing.level]
    known = [(ratio.low, ratio.high, ratio.runs) for ratio in found if ratio is not None and ratio.low and ratio.high]
    if not known:
        return ""
    low, high, runs = max(known, key=lambda each: each[1] / each[0])
    return f"95 %: {low - 1:+.1%} to {high - 1:+.1%}; {runs[1]} and {runs[0]} runs"


def _more_repeats(suite: Suite, standing: Standing, best: int) -> list[str]:
    """Return how many repeats would tell the best row from the furthest of those that do not differ from it."""
    ratios = [suite.rivals.ratio(standing.metric, place, best) for place in standing.level]
    furthest = max((each for each in ratios if each is not None), key=lambda each: abs(math.log(each.ratio)))
    runs = None if furthest.spread is None else repeats_to_tell(furthest.ratio, furthest.spread, suite.rivals.pairs)
    apart = f"{abs(furthest.ratio - 1):.1%} apart at this spread takes"
    return [f"{apart} {f'above {MOST_REPEATS}' if runs is None else runs} repeats"] if furthest.spread else []


def _furthest(suite: Suite, metric: str, places: Iterable[int]) -> str:
    worst = min if better(metric) == "higher" else max
    return _text(metric, worst(value_of(suite, metric, place) for place in places))


def value_of(suite: Suite, metric: str, place: int) -> float:
    """Return a figure of a row that has it."""
    own: Any = suite.rivals.mean(metric, place) if metric in COSTS else getattr(suite.rows[place].record, metric)
    return float(own)


def _text(metric: str, value: float) -> str:
    return scaled(value, COSTS[metric][1]) if metric in COSTS else HEADLINE[metric].text(value)


def named(suite: Suite, places: Iterable[int]) -> str:
    """Return the names of rows, a few of many."""
    names = [suite.rows[place].name for place in places]
    if len(names) > _MOST_NAMED:
        return shortened(names, _MOST_NAMED)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _unavailable(suite: Suite, standing: Standing) -> str:
    """Return the rows that take no part, those without the figure apart from those whose figure says nothing."""
    parts: dict[str, list[int]] = {}
    for place in standing.unavailable:
        absent = standing.metric in COSTS or getattr(suite.rows[place].record, standing.metric) is None
        parts.setdefault("n/a" if absent else "left out", []).append(place)
    return "; ".join(f"{why}: {named(suite, places)}" for why, places in parts.items())


def answers_table(suites: Sequence[Suite]) -> Table:
    """Return the answers as a table of text, one line for each set."""
    rows = [
        (
            ". ".join(filter(None, (suite.title, unmatched(suite)))),
            *(": ".join(part for part in (each.text, each.detail) if part) for each in answers(suite)),
        )
        for suite in suites
    ]
    header = ("", *TITLES.values())
    return Table(header, rows, tuple(range(len(header))), notes=(RULE, *open_questions(suites)))


def open_questions(suites: Sequence[Suite]) -> tuple[str, ...]:
    """Return what the sets cannot answer and why, each reason once."""
    found: dict[str, dict[str, None]] = {}
    for suite in suites:
        if len(suite.rows) == 1:
            found.setdefault("No other row under the same conditions to compare with", {})[suite.title] = None
        for metric in QUESTIONS:
            standing = suite.rivals.standing(metric)
            for place, why in standing.unavailable.items():
                title = f"{HEADLINE[metric].title} of {suite.rows[place].record.run}"
                found.setdefault(why.removeprefix(f"{suite.rows[place].record.run}: "), {})[title] = None
            best = "" if standing.best is None else suite.rows[standing.best].name
            for place, differences in standing.apart.items():
                pair = f"{suite.title}: {suite.rows[place].name} with {best}"
                found.setdefault(f"Not compared, {'; '.join(map(brief, differences))}", {})[pair] = None
            if None in standing.open.values():
                found.setdefault(NOISE_UNKNOWN, {})[suite.title] = None
    return (*_told(found), *objections(suites))


def objections(suites: Sequence[Suite]) -> list[str]:
    """Return why rows were not judged against the best, and which, each reason once."""
    found: dict[str, dict[str, None]] = {}
    for suite in suites:
        for metric in QUESTIONS:
            standing = suite.rivals.standing(metric)
            for place, objection in standing.open.items():
                if objection is not None and standing.best is not None:
                    pair = f"{suite.title}: {suite.rows[place].name} with {suite.rows[standing.best].name}"
                    found.setdefault(f"No verdict on {HEADLINE[metric].title}: {objection.why}", {})[pair] = None
    return _told(found)


def _told(found: Mapping[str, Mapping[str, None]]) -> list[str]:
    """Return a sentence for each reason, with the places that it holds in."""
    return [f"{why} ({shortened(list(where), _MOST_NAMED, '; ')})." for why, where in found.items()]


NOISE_UNKNOWN = (
    f"No verdict where the noise between runs is unknown: it takes {MIN_REPEATS} repeats of each row (--repeat "
    f"{MIN_REPEATS}), or {MIN_REPEATS} runs of one model under the same conditions"
)


NOTHING = "nothing else"
"""What a side has of a condition beyond the other; `none` is a positional encoding."""


def brief(difference: Difference) -> str:
    """Return a difference in short: of each text, only the parts that the other text lacks."""
    one, other = (text.split(", ") for text in (difference.one, difference.other))
    only = [[part for part in mine if part not in theirs] for mine, theirs in ((one, other), (other, one))]
    return f"{difference.condition}: {', '.join(only[0]) or NOTHING} against {', '.join(only[1]) or NOTHING}"
