"""The page of a study: the answer first, then methods and every run, as the parts that text and HTML are made of."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from efficientbench.basics.counted import number_of
from efficientbench.metrics.report.table import ABSENT, Table, escape, markdown_table, print_wide_table
from efficientbench.studies import methods
from efficientbench.studies.answer import Answer, Findings
from efficientbench.studies.cautions import MATCHED
from efficientbench.studies.further import Further
from efficientbench.studies.simulate import POWER
from efficientbench.studies.verdict import LEVEL, Interval
from efficientbench.studies.words import (
    Part,
    cell_text,
    chance,
    difference_text,
    figure,
    hours_text,
    lead_text,
    listed,
    loss_text,
    percent,
    ratio_text,
    signed,
)

_FRONT = {True: "yes", False: "no", None: "cannot tell"}


def title(answer: Answer) -> str:
    """Return what the study compares, and at which target."""
    section = answer.section
    matched = f"matched by {MATCHED[section.match]}" if section.match != "none" else "not matched"
    return f"{', '.join(section.ordered)} at {cell_text(answer.target)}, {matched}"


def summary(answer: Answer) -> str:
    """Return how much of the study there is."""
    complete, seeds = number_of(answer.complete, "run"), number_of(answer.section.seeds, "seed")
    where = f", {answer.device_name}" if answer.device_name else ""
    return f"{answer.name}: {complete} of {len(answer.runs)}, {seeds}{where}"


def parts(answer: Answer) -> list[Part]:
    """Return the page's parts that have something to show, the answer first."""
    found = answer.findings
    every = [Part("notes", "Before you use this answer", answer.cautions), verdict(answer)]
    every.append(methods.matching(answer))
    if found is not None:
        every.append(methods.differences(found))
    every.append(methods.rates(answer))
    if found is not None:
        every += [methods.spread(found), methods.law(found)]
    every.append(methods.runs(answer))
    if found is not None:
        every += [methods.prior(answer, found), Part("quote", "To quote", (quote(answer, found),))]
    return [each for each in every if each]


def markdown(answer: Answer) -> str:
    """Return the text of study.md."""
    text = [f"# {escape(title(answer))}", escape(summary(answer))]
    for part in parts(answer):
        text += [f"## {part.title}", *map(escape, part.lines)]
        if part.table:
            text += [markdown_table(part.table), *map(escape, part.table.notes)]
    return "\n\n".join(text) + "\n"


def print_answer(answer: Answer, console: Console) -> None:
    """Print the cautions and the verdict; the files have the rest."""
    console.print(Text(title(answer), style="bold"))
    console.print(Text(summary(answer)))
    for line in answer.cautions:
        console.print(Text(f"Note: {line}"))
    console.print()
    shown = verdict(answer)
    for line in shown.lines:
        console.print(Text(line))
    if shown.table:
        console.print()
        print_wide_table(shown.table, console)
        for line in shown.table.notes:
            console.print(Text(line))


def verdict(answer: Answer) -> Part:
    """Return the answer: in sentences, then each variant's figures at the target."""
    placeless = [f"{name}: no place in the verdict: {why}." for name, why in answer.placeless.items()]
    if answer.findings is None:
        return Part("verdict", "The answer", (f"No verdict: {answer.no_verdict}.", *placeless))
    lines = [*_best(answer, answer.findings), *_cheapest(answer.findings), *placeless]
    return Part("verdict", "The answer", tuple(lines), _standings(answer, answer.findings))


def _best(answer: Answer, found: Findings) -> list[str]:
    """Return the sentences on the lowest loss."""
    baseline, chances = answer.section.baseline, found.verdict.best.probabilities
    possible = found.verdict.best.possible
    if found.named is None:
        named = listed(possible)
        if found.verdict.is_level:
            return [f"{named} are level within {LEVEL} nats: choose by cost."]
        shares = ", ".join(chance(chances[name]) for name in possible)
        return [f"{named} cannot be told apart: P(best loss) {shares}.", *_help(found.further)]
    level = [each for pair in found.verdict.level if found.named in pair for each in pair if each != found.named]
    beside = [f"Level with it within {LEVEL} nats: {listed(level)}; cost may decide."] if level else []
    sure = f"Pretrain {found.named}: P(best loss) {chance(chances[found.named])}"
    standing = next(each for each in found.verdict.standings if each.variant == found.named)
    if standing.difference is None:
        others = [each for each in found.verdict.standings if each.difference is not None]
        nearest = min(others, key=lambda each: each.difference.mean if each.difference else 0.0)
        assert nearest.difference is not None
        return [f"{sure}; {nearest.variant}, the nearest, lies {lead_text(nearest.difference)} nats above it.", *beside]
    lead = Interval(-standing.difference.mean, -standing.difference.high, -standing.difference.low)
    saved = [
        f"{percent(1 - ratio.mean)} fewer {unit} for {baseline}'s loss"
        for unit, ratio in standing.to_baseline.items()
        if ratio.high < 1
    ]
    return [f"{'; '.join([sure, f'{lead_text(lead)} nats below {baseline}', *saved[:1]])}.", *beside]


def _help(further: Further | None) -> list[str]:
    """Return the sentences on what would help."""
    if further is None:
        return []
    chances = [f"{each.what} (+{hours_text(each.device_hours)}): {percent(each.chance)}" for each in further.extras]
    lines, advised = [f"Chances of a name: {'; '.join(chances)}."], further.advised
    if advised is not None:
        sure = percent(advised.chance)
        lines.insert(0, f"{advised.what} (+{hours_text(advised.device_hours)}) would name one with {sure}.")
    else:
        lines.append(
            f"None of these reaches {percent(POWER)}: the spread of laws between sizes, or a tie, decides, not noise."
        )
    if further.smaller is not None:
        smaller = further.smaller
        lines.append(
            f"At a smaller target, {cell_text(smaller.target)}, these runs name {smaller.named} already "
            f"({chance(smaller.probability)})."
        )
    return lines


def _cheapest(found: Findings) -> list[str]:
    baseline = found.verdict.standings[0].variant
    lines = []
    for unit, choice in found.verdict.cheapest.items():
        named = choice.named
        told = (
            f"{named} ({chance(choice.probabilities[named])})"
            if named
            else f"{listed(choice.possible)}: cannot be told"
        )
        lines.append(f"Cheapest to {baseline}'s loss, in {unit}: {told}.")
    return lines


def _standings(answer: Answer, found: Findings) -> Table:
    """Return each variant's figures at the target, in the order of the loss."""
    baseline, costs = answer.section.baseline, answer.costs
    units = list(found.verdict.cheapest)
    cache = answer.costs[baseline].cache_bytes_per_token
    header = ["variant", "loss at target", "bits per byte", f"minus {baseline}", "P(best)", "device-hours", "kWh"]
    header += ["cost"] if answer.price_per_hour is not None else []
    header += [f"{unit} to {baseline}'s loss" for unit in units] + ["cache/token", "Pareto"]
    rows = []
    for each in sorted(found.verdict.standings, key=lambda each: each.difference.mean if each.difference else 0.0):
        cost = costs[each.variant]
        hours = None if cost.device_seconds is None else cost.device_seconds / 3600
        row = [each.variant, loss_text(each.loss), loss_text(each.bits_per_byte), difference_text(each.difference)]
        row += [chance(each.best), figure(hours), figure(None if cost.joules is None else cost.joules / 3.6e6)]
        if answer.price_per_hour is not None:
            row.append(figure(None if hours is None else hours * answer.price_per_hour))
        row += [ratio_text(each.to_baseline[unit]) for unit in units]
        own = cost.cache_bytes_per_token
        row.append(f"{own / cache:.2g} ×" if cache and own is not None else ABSENT)
        rows.append([*row, _FRONT[each.on_front]])
    return Table(header, rows, notes=_notes(answer, found))


def _notes(answer: Answer, found: Findings) -> list[str]:
    """Return what stands below the verdict's table."""
    notes = []
    held = found.held_out
    if held is not None:
        told = "inside" if held.is_inside else "outside"
        notes.append(
            f"Held out: {held.size}, predicted from the other sizes: {held.predicted:.3f} ({held.low:.3f} to "
            f"{held.high:.3f}), measured {held.measured:.3f}: {told}."
        )
    ranked = ", ".join(f"{name} {loss:.3f}" for name, loss in found.ranking.losses.items())
    first, best = next(iter(found.ranking.losses)), max(found.verdict.best.probabilities.items(), key=lambda p: p[1])[0]
    same = f"{first} leads there too" if first == best else f"{first} leads there, {best} at the target"
    notes.append(f"As measured at the largest size, {cell_text(found.ranking.cell)}: {ranked}; {same}.")
    for each in found.trends:
        steps = " ".join(f"{size} {signed(value)}" for size, value in each.by_size.items())
        notes.append(f"{each.variant} by size: {steps}; at the target {signed(each.at_target)}: {_WAYS[each.way]}.")
    level = [f"{one} and {other}" for one, other in found.verdict.level]
    notes += [f"Level within {LEVEL} nats: {'; '.join(level)}."] if level else []
    notes.append(f"The target is {_reach(answer, found):.1f} times the largest size.")
    if found.no_bits_per_byte is not None:
        notes.append(f"Bits per byte: {found.no_bits_per_byte}.")
    axes = ["loss", *found.verdict.cheapest, *found.serving]
    notes.append(f"Pareto: over {', '.join(axes)}; no: dominated in 97.5 % of the draws.")
    notes += [f"{unit}: {told}." for unit, told in found.cost_sources.items()]
    centres = "the mean; of ratios the geometric mean, of the held-out loss the median"
    notes.append(f"Before an interval of 95 % stands {centres}.")
    return notes


_WAYS = {
    "shrinks": "it shrinks",
    "grows": "it grows",
    "changes sign": "it changes its sign",
    "cannot be told": "whether it grows or shrinks cannot be told",
}


def quote(answer: Answer, found: Findings) -> str:
    """Return three sentences that may be quoted: what was trained, what follows, and how far that reaches."""
    section, sizes = answer.section, list(found.trends[0].by_size)
    seeds = f"{section.seeds} paired seed{'s' if section.seeds > 1 else ''}"
    made = (
        f"We trained {listed(section.ordered)} in {answer.complete} runs of {sizes[0]} to {sizes[-1]} "
        f"({len(section.tokens_per_parameter)} token budgets, {seeds}; {title(answer).rpartition(', ')[2]})."
    )
    chances = found.verdict.best.probabilities
    if found.named is not None:
        told = f"{found.named} has the lowest loss with probability {chance(chances[found.named])}"
        told += "".join(
            f"; {each.variant} minus {section.baseline}: {signed(each.difference.mean)} nats (95 % interval "
            f"{signed(each.difference.low)} to {signed(each.difference.high)})"
            for each in found.verdict.standings
            if each.difference is not None
        )
    elif found.verdict.is_level:
        told = f"{listed(found.verdict.best.possible)} are level within {LEVEL} nats (95 %)"
    else:
        shares = ", ".join(f"{name} {chance(chances[name])}" for name in found.verdict.best.possible)
        told = f"the best cannot be told (probability of the lowest loss: {shares})"
    if all(each.difference is None for each in found.noise):
        least, most = found.prior.noise[0], found.prior.noise[-1]
        told += (
            f", if the noise between runs is that of the prior, a standard deviation of {least:.2g} to {most:.2g} "
            "nats: with one seed it was not measured"
        )
    reach = (
        f"The target is {_reach(answer, found):.1f} times the largest size trained, and the fit is edition "
        f"{answer.edition} of EfficientBench's study."
    )
    return f"{made} At {cell_text(answer.target)}, {told}. {reach}"


def _reach(answer: Answer, found: Findings) -> float:
    return answer.target.parameters / found.ranking.cell.parameters
