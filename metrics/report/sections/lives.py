"""The costs of two models' lives as text: training, serving, and from where one overtakes the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from efficientbench.metrics.analysis.life_cost import Amount, Life, Lives, overtaking
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.report.table import ABSENT, Table, print_table

NAMES = ("A", "B")
CURRENCY = "currency"


def print_lives(
    lives: Sequence[Lives], engine: str, served_tokens: float, price_per_hour: float | None, console: Console
) -> None:
    """Print the costs at each combination of prompt, batch and new tokens, and where they meet.

    Args:
        lives: both models' costs at each combination.
        engine: the engine that generated.
        served_tokens: new tokens that each model serves in its life.
        price_per_hour: the price of one device hour; None for no costs in currency.
        console: the console to print on.
    """
    console.print()
    console.print(Text(f"A life: the training and {served_tokens:,.4g} served tokens, which are new ones."))
    for each in lives:
        console.print()
        prompt, batch, new = each.combination
        console.print(Text(f"Served with prompts of {prompt:,} tokens, batch {batch:,}, {new:,} new tokens:"))
        costs = _priced(each, price_per_hour)
        if costs:
            print_table(_table(costs, served_tokens), console, gap=1)
        for unit, (first, second) in costs.items():
            if unit != CURRENCY:
                console.print(Text(f"{unit}: {_meeting(first, second)}"))
        for unit, why in each.missing.items():
            console.print(Text(f"{ABSENT} {unit}: {why}"), style="dim")
    console.print()
    console.print(Text(f"Engine: {engine}. These are no figures of vLLM's, SGLang's or another server's."))
    console.print(Text(BASIS), style="dim")


BASIS = (
    "A served token carries its share of the prompt. 95 % intervals: over repeats where there are several; else of "
    "hours over a run's steps and over the requests of one measurement, without the noise between runs, and of J none."
)


def _priced(lives: Lives, price_per_hour: float | None) -> dict[str, tuple[Life, Life]]:
    """Return the costs by unit; with a price, also the cost of the device hours in currency."""
    costs: dict[str, tuple[Life, Life]] = dict(lives.costs.items())
    if price_per_hour is not None and "device hours" in lives.costs:
        first, second = lives.costs["device hours"]
        costs[CURRENCY] = first.times(price_per_hour), second.times(price_per_hour)
    return costs


def _table(costs: dict[str, tuple[Life, Life]], served_tokens: float) -> Table:
    rows = []
    for unit, sides in costs.items():
        serving = [life.token.times(served_tokens) for life in sides]
        whole = [life.after(served_tokens) for life in sides]
        for name, amounts in (
            ("training", [life.training for life in sides]), ("serving", serving), ("life", whole)
        ):  # fmt: skip
            cells = [cell for amount in amounts for cell in (_number(amount.value), _interval(amount))]
            rows.append((f"{name}, {unit}", *cells))
    return Table(("cost", "A", "95 %", "B", "95 %"), rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def _interval(amount: Amount) -> str:
    ends = amount.interval
    return ABSENT if ends is None else f"{_number(ends[0])} to {_number(ends[1])}"


def _meeting(first: Life, second: Life) -> str:
    """Return from how many served tokens on the other model costs less, or which costs less at any number."""
    found = overtaking(first, second)
    if found.before is None:
        return "both cost the same."
    cheaper = NAMES[found.before]
    if found.tokens is None:
        return f"{cheaper} costs less at any number of served tokens, by these figures."
    interval = ""
    if found.low is not None and found.high is not None:
        end = "no upper end, since serving may cost the same" if math.isinf(found.high) else count(found.high)
        interval = f" (95 %: {count(found.low)} to {end})"
    other = NAMES[1 - found.before]
    return f"{other} overtakes {cheaper} from {count(found.tokens)} served tokens on{interval}."
