"""The costs of two models' lives as text: training, serving, and from where one overtakes the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from efficientbench.metrics.analysis.life_cost import Lives, Losses, Unit
from efficientbench.metrics.analysis.overtaking import Amount, Life, Overtaking, overtaking
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.report.table import ABSENT, Table, print_table

NAMES = ("A", "B")
CURRENCY = "currency"


def print_lives(
    lives: Sequence[Lives],
    losses: Losses,
    engine: str,
    served_tokens: float,
    price_per_hour: float | None,
    console: Console,
) -> None:
    """Print the costs at each combination of prompt, batch and new tokens, and where they meet.

    Args:
        lives: both models' costs at each combination.
        losses: what both models learned for them.
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
        if each.costs:
            print_table(_table(each, losses, served_tokens, price_per_hour), console, gap=1)
        for unit, (first, second) in each.costs.items():
            console.print(Text(f"{unit}: {_meeting(each, unit, first, second)}; {_learned(losses)}."))
        for unit, (first, second) in each.at_loss.items():
            console.print(Text(f"{unit} at equal loss, {losses.target:.4g}: {_meeting(each, unit, first, second)}."))
        for what, why in each.missing.items():
            console.print(Text(f"{ABSENT} {what}: {why}"), style="dim")
    console.print()
    if losses.why_not_equal:
        console.print(Text(f"{ABSENT} cost at equal loss: {losses.why_not_equal}"), style="dim")
    console.print(Text(f"Engine: {engine}. These are no figures of vLLM's, SGLang's or another server's."))
    console.print(Text(BASIS), style="dim")


BASIS = (
    "Training is that of all runs whose weights a model comes from: device hours are of all attempts, set-up and "
    "evaluation included; training hours and J are of the steps alone, with what reinforcement learning samples. A "
    "served token carries its share of the prompt. At equal loss the steps after that loss are left out. 95 % "
    "intervals are over repeats; the clearest of a unit's differences is significant at 5 % by Bonferroni, or nothing "
    "is told."
)


def _table(lives: Lives, losses: Losses, served_tokens: float, price_per_hour: float | None) -> Table:
    rows: list[tuple[str, Sequence[Amount]]] = []
    if losses.values is not None:
        rows.append(("validation loss, nats", losses.values))
    for unit, sides in lives.costs.items():
        rows.append((f"training, {unit}", [life.training for life in sides]))
        if unit == "device hours" and lives.training_hours is not None:
            rows.append((f"of that, steps, {unit}", lives.training_hours))
        rows.append((f"serving, {unit}", [life.token.times(served_tokens) for life in sides]))
        rows.append((f"life, {unit}", [life.after(served_tokens) for life in sides]))
        if unit in lives.at_loss:
            rows.append((f"life at equal loss, {unit}", [life.after(served_tokens) for life in lives.at_loss[unit]]))
    if price_per_hour is not None:
        rows += [
            (name.replace("device hours", CURRENCY), [amount.times(price_per_hour) for amount in amounts])
            for name, amounts in rows
            if name.endswith("device hours") and not name.startswith("of that")
        ]
    cells = [(name, *(cell for each in pair for cell in (_number(each.value), _interval(each)))) for name, pair in rows]
    return Table(("cost", "A", "95 %", "B", "95 %"), cells)


def _learned(losses: Losses) -> str:
    """Return the losses of both models, or why they are not known."""
    if losses.values is None:
        return f"their losses are not compared ({losses.why})"
    told = []
    for name, loss in zip(NAMES, losses.values, strict=True):
        margin = f" ± {loss.noise.margin:.4f}" if loss.noise else ""
        told.append(f"{name} {loss.value:.4f}{margin}")
    return f"validation losses: {', '.join(told)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def _interval(amount: Amount) -> str:
    ends = amount.interval
    return ABSENT if ends is None else f"{_number(ends[0])} to {_number(ends[1])}"


def _meeting(lives: Lives, unit: Unit, first: Life, second: Life) -> str:
    """Return from how many served tokens on which model costs less, as far as that can be told."""
    found = overtaking(first, second, lives.differences)
    if found.before is None or found.after is None:
        return "both cost the same, by the figures"
    told = "" if unit in lives.untold else _told(found, NAMES[found.before], NAMES[found.after])
    carried = f" ({lives.carried[unit]})" if unit in lives.carried else ""
    if told:
        return f"{told}{carried}"
    why = lives.untold.get(unit, "the differences are within the noise")
    return f"cannot be told, since {why}; by the figures alone, {_by_figures(found)}{carried}"


def _by_figures(found: Overtaking) -> str:
    before, after = NAMES[found.before or 0], NAMES[found.after or 0]
    if found.tokens is None:
        return f"{before} costs less"
    return f"{after} overtakes {before} from {count(found.tokens)} served tokens on"


def _told(found: Overtaking, before: str, after: str) -> str:
    """Return what the intervals say; empty if nothing."""
    if found.always:
        return f"{before} costs less at any number of served tokens"
    if found.low > 0 and not math.isinf(found.high):
        return f"{_by_figures(found)} (95 %: {count(found.low)} to {count(found.high)})"
    if found.low > 0:
        return f"{before} costs less up to {count(found.low)} served tokens; beyond, it cannot be told"
    if not math.isinf(found.high):
        return f"{after} costs less from {count(found.high)} served tokens on; below, it cannot be told"
    return ""
