"""The first lines of a report: which row to choose by its cost to a loss, what was left out, and what is compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from efficientbench.basics.grouped import grouped
from efficientbench.metrics.analysis.rivals import QUESTIONS, better
from efficientbench.metrics.report.answers import COSTS, TITLES, answer_to, answers, named, objections, value_of
from efficientbench.metrics.report.headline import HEADLINE, with_names
from efficientbench.metrics.report.model_sizes import unmatched
from efficientbench.metrics.report.paper.paper import BASELINES, suite_of
from efficientbench.metrics.report.suites import Rows, Suite
from efficientbench.metrics.report.table import shortened, spoken

_MOST_NAMED = 6
MOST_SETS = 5
"""Most sets whose answers a terminal shows, so that they fit a page."""


def first_lines(rows: Rows, price_per_hour: float | None) -> list[str]:
    """Return the first lines of a report: the sentences of each set, what is left out, and which baselines stand in."""
    told = [f"{suite.title}: {line}" for suite in rows.suites for line in sentences(suite, price_per_hour)]
    return [*told, *filter(None, [left_out(rows)]), *filter(None, map(stand_in, rows.suites))]


def stand_in(suite: Suite) -> str:
    """Return which row stands in for the baseline of a set of several rows; empty where the baseline is there."""
    usual = next((name for name in BASELINES if suite_of(name) == suite.name), None)
    row = suite.rows[suite.baseline]
    if usual is None or row.record.variant in BASELINES or len(suite.rows) == 1:
        return ""
    return f"{suite.title}: differences are to {row.name}, for {usual} has no completed row here."


def left_out(rows: Rows) -> str:
    """Return the sentence on the rows of failed and stopped runs, which are in no set; empty without such rows."""
    found = [name for name, record in with_names(rows.records) if record.status != "completed"]
    return f"Left out: {shortened(found, _MOST_NAMED, '; ')}." if found else ""


def sentences(suite: Suite, price_per_hour: float | None = None) -> list[str]:
    """Return which row to choose by its cost to a loss, and the rows that no other row beats in everything.

    Nothing where no two rows have losses that may be compared. `price_per_hour`: of one device, in currency.
    """
    target = suite.rivals.target_loss
    if target is None:
        return []
    found = []
    for metric, (word, _) in COSTS.items():
        standing = suite.rivals.standing(metric)
        answer = answer_to(suite, standing)
        if answer.kind != "absent":
            price = _price(suite, standing.best, price_per_hour) if metric == "time_to_loss_s" else ""
            told = "; ".join(filter(None, (answer.text, answer.detail)))
            found.append(f"By {word} to a validation loss of {target:.4g}: {told}{price}.")
    return [*found, *_unbeaten(suite)]


def _price(suite: Suite, best: int | None, price_per_hour: float | None) -> str:
    if best is None or price_per_hour is None:
        return ""
    hours = value_of(suite, "time_to_loss_s", best) / 3600 * suite.rows[best].record.devices
    return f"; {hours * price_per_hour:,.4g} in currency for {suite.rows[best].name}"


def _unbeaten(suite: Suite) -> list[str]:
    """Return the sentence on the rows that no other row beats in every figure at once (the Pareto set)."""
    rows = [place for place in range(len(suite.rows)) if suite.rivals.mean("validation_loss", place) is not None]
    metrics = [name for name in QUESTIONS if all(suite.rivals.mean(name, place) is not None for place in rows)]
    if len(rows) < 2 or len(metrics) < 2:
        return []
    signs = np.array([-1 if better(metric) == "higher" else 1 for metric in metrics])
    costs = signs * np.array([[value_of(suite, metric, place) for metric in metrics] for place in rows])
    front = [
        place
        for place, own in zip(rows, costs, strict=True)
        if not np.any(np.all(costs <= own, axis=1) & np.any(costs < own, axis=1))
    ]
    titles = ", ".join(HEADLINE[metric].title for metric in metrics)
    return [f"Beaten by no other row in {titles} together: {named(suite, front)} (figures as they stand)."]


def print_answers(suites: Sequence[Suite], console: Console, price_per_hour: float | None = None) -> None:
    """Print the answers of each set that has two or more rows; `price_per_hour`: see `sentences`."""
    several = [suite for suite in suites if len(suite.rows) > 1]
    for suite in several[:MOST_SETS]:
        console.print(Text(suite.title, style="bold"))
        if unmatched(suite):
            console.print(spoken(f"  {unmatched(suite)}"))
        for line in sentences(suite, price_per_hour):
            console.print(spoken(f"  {line}"))
        for title, each in zip(TITLES.values(), answers(suite), strict=True):
            console.print(spoken(f"  {title}: {'; '.join(part for part in (each.text, each.detail) if part)}"))
        for line in objections([suite]):
            console.print(spoken(f"  {line}"))
        console.print()
    if len(several) > MOST_SETS:
        console.print(spoken(f"{len(several) - MOST_SETS:,} more sets: report.md, or --only NAMES."))
    for line in separated(suites):
        console.print(spoken(line))


def separated(suites: Sequence[Suite]) -> list[str]:
    """Return a sentence for each suite and size whose rows ran under different conditions, so that sets are apart."""
    sets = grouped((", ".join(filter(None, (suite.name, suite.size))), suite) for suite in suites)
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
        parts.append(f"{named(suite, range(len(suite.rows)))} ({where})")
    return " against ".join(parts)
