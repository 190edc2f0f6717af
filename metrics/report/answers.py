"""The first lines of a report: which row of each set is best in a figure, in words, and what stays open.

A difference within the noise is called none, and without knowledge of the noise there is no verdict. `analysis.rivals`
has the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

from efficientbench.metrics.analysis.conditions import Difference
from efficientbench.metrics.analysis.rivals import QUESTIONS, Standing
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, MOST_REPEATS, SIGNIFICANCE, Ratio, repeats_to_tell
from efficientbench.metrics.records.record import FIGURES
from efficientbench.metrics.report.headline import HEADLINE, unique_names
from efficientbench.metrics.report.model_sizes import unmatched
from efficientbench.metrics.report.suites import Rows, Suite
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
    return [_answer(suite, suite.rivals.standing(metric)) for metric in QUESTIONS]


def _answer(suite: Suite, standing: Standing) -> Answer:
    best = standing.best
    if best is None:
        return Answer("absent", "not known", "")
    value = _figure(suite, standing.metric, best)
    if len(standing.unavailable) == len(suite.rows) - 1:
        others = f"{suite.rows[best].name} alone; {_unavailable(suite, standing)}" if len(suite.rows) > 1 else ""
        return Answer("alone", value, others)
    name = suite.rows[best].name
    parts = [_beaten(suite, standing, best)] if standing.worse else []
    if standing.open:
        parts.append(f"no verdict against {_names(suite, standing.open)}")
    if standing.apart:
        parts.append(f"not compared with {_names(suite, standing.apart)}, which ran otherwise")
    if standing.unavailable:
        parts.append(_unavailable(suite, standing))
    if standing.level:
        parts += _more_repeats(suite, standing, best)
        tied = [best, *standing.level]
        ends = list(dict.fromkeys((value, _furthest(suite, standing.metric, standing.level))))
        alike = f"{_names(suite, tied)}: no difference"
        return Answer(
            "level", alike, "; ".join(filter(None, [" to ".join(ends), _within(suite, standing, best), *parts]))
        )
    if standing.open or standing.apart:
        return Answer("open", f"no verdict; {_extreme(standing.metric)}: {name}, {value}", "; ".join(parts))
    return Answer("clear", f"{name}: {value}", "; ".join(parts))


def _beaten(suite: Suite, standing: Standing, best: int) -> str:
    """Return by how much the best row is better than the nearest row that is worse by more than noise."""
    nearest = min(standing.worse, key=lambda place: abs(standing.worse[place].ratio - 1))
    others = [place for place in standing.worse if place != nearest]
    own = f"{suite.rows[best].name} " if standing.level or standing.open else ""
    further = f", and than {_names(suite, others)} by more" if others else ""
    known = "; ".join(dict.fromkeys(ratio.carried for ratio in standing.worse.values() if ratio.carried))
    carried = f" ({known})" if known else ""
    ratio = standing.worse[nearest]
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
    values = [getattr(suite.rows[place].record, metric) for place in places]
    return HEADLINE[metric].text(min(values) if FIGURES[metric].better == "higher" else max(values))


def _extreme(metric: str) -> str:
    return "highest figure" if FIGURES[metric].better == "higher" else "lowest figure"


def _figure(suite: Suite, metric: str, place: int) -> str:
    return HEADLINE[metric].text(getattr(suite.rows[place].record, metric))


def _names(suite: Suite, places: Iterable[int]) -> str:
    names = [suite.rows[place].name for place in places]
    if len(names) > _MOST_NAMED:
        return shortened(names, _MOST_NAMED)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _unavailable(suite: Suite, standing: Standing) -> str:
    """Return the rows that take no part, those without the figure apart from those whose figure says nothing."""
    parts: dict[str, list[int]] = {}
    for place in standing.unavailable:
        absent = getattr(suite.rows[place].record, standing.metric) is None
        parts.setdefault("n/a" if absent else "left out", []).append(place)
    return "; ".join(f"{why}: {_names(suite, places)}" for why, places in parts.items())


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


def print_answers(suites: Sequence[Suite], console: Console) -> None:
    """Print the answers of each set that has two or more rows."""
    for suite in suites:
        if len(suite.rows) > 1:
            console.print(Text(suite.title, style="bold"))
            if unmatched(suite):
                console.print(Text(f"  {unmatched(suite)}"))
            for title, each in zip(TITLES.values(), answers(suite), strict=True):
                console.print(Text(f"  {title}: {'; '.join(part for part in (each.text, each.detail) if part)}"))
            for line in objections([suite]):
                console.print(Text(f"  {line}"))
            console.print()
    for line in separated(suites):
        console.print(Text(line))


def separated(suites: Sequence[Suite]) -> list[str]:
    """Return a sentence for each suite and size whose rows ran under different conditions, so that sets are apart."""
    sets: dict[str, list[Suite]] = {}
    for suite in suites:
        sets.setdefault(", ".join(filter(None, (suite.name, suite.size))), []).append(suite)
    return [
        f"{title}: not compared, for they ran otherwise: {_told_apart(each)}."
        for title, each in sets.items()
        if len(each) > 1
    ]


def _told_apart(suites: Sequence[Suite]) -> str:
    parts = []
    for suite in suites:
        scale = "smoke" if suite.rows[0].record.smoke else ""
        where = ", ".join(part for part in (suite.conditions, scale) if part) or "full size"
        parts.append(f"{_names(suite, range(len(suite.rows)))} ({where})")
    return " against ".join(parts)


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


def brief(difference: Difference) -> str:
    """Return a difference in short: of each text, only the parts that the other text lacks."""
    one, other = (text.split(", ") for text in (difference.one, difference.other))
    only = [[part for part in mine if part not in theirs] for mine, theirs in ((one, other), (other, one))]
    return f"{difference.condition}: {', '.join(only[0]) or 'none'} against {', '.join(only[1]) or 'none'}"


def left_out(rows: Rows) -> str:
    """Return the sentence on the rows of failed and stopped runs, which are in no set; empty without such rows."""
    names = unique_names(rows.records)
    found = [name for name, record in zip(names, rows.records, strict=True) if record.status != "completed"]
    return f"Left out: {shortened(found, _MOST_NAMED, '; ')}." if found else ""
