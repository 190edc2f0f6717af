"""What a study takes, and what it can tell, before it is trained; and the ladder that a budget can pay for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from efficientbench.architecture.variant import known
from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.errors import ConfigError
from efficientbench.config.matrix import load_matrix
from efficientbench.metrics.records.figure import ENERGY_UNITS, count, scaled
from efficientbench.metrics.records.record import RunRecord
from efficientbench.planning.bill import HOUR_S, Bill, first_line
from efficientbench.planning.table import ABSENT, plain_table, print_lines
from efficientbench.planning.vocabulary import is_given, with_vocabulary
from efficientbench.studies.cells import (
    LadderPlan,
    Models,
    cell_of,
    models_of,
    plan_ladder,
    study_overrides,
    unreadable_text,
)
from efficientbench.studies.effects import Prior, fitted_to, seed_noise
from efficientbench.studies.further import TRUNK_SHARE
from efficientbench.studies.ladder import LEAST_SIZES, Ladder
from efficientbench.studies.law import PUBLISHED_FROM
from efficientbench.studies.rates import MOST_FURTHER, first_rates
from efficientbench.studies.run import replaced
from efficientbench.studies.runs import Study
from efficientbench.studies.simulate import PLANNED_NOISE, precision
from efficientbench.studies.suite import REACH, Search, StudySection, section_of
from efficientbench.studies.tasks import Planned
from efficientbench.studies.words import hours_text, percent
from efficientbench.sweep.dry_run import bill_of
from efficientbench.sweep.machine import Machine, slots
from efficientbench.sweep.selection import Request, chosen_combinations
from efficientbench.sweep.sweep import records_in

SEARCHED = len(first_rates(1.0))
MOST = SEARCHED + MOST_FURTHER
"""Rates that a search tries at least, and at most."""
GRIDS = (((10.0, 20.0, 40.0), 3), ((10.0, 20.0, 40.0), 2), ((10.0, 20.0), 2))
"""Tokens per parameter and seeds that a budget may pay for, the best first."""
APART = 1.5
"""How many times larger than the next smaller one a size of such a ladder is."""
WIDE_GAP = 0.02
"""Nats from which on a gap that a ladder can see is warned of."""


@dataclass(frozen=True)
class Taken:
    """What a run takes for the steps that it trains itself."""

    flops: float | None
    bill: Bill
    sources: tuple[str, ...]
    """How time and energy were estimated, or why they were not."""

    @property
    def device_hours(self) -> float | None:
        """None where no time is known."""
        return None if self.bill.time_s is None else self.bill.time_s * self.bill.devices / HOUR_S


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None where one is not known."""
    every = list(values)
    there = [each for each in every if each is not None]
    return sum(there) if len(there) == len(every) else None


def _taken(run: Planned, plan: LadderPlan, records: Sequence[RunRecord]) -> Taken:
    """Return what a run takes on the plan's machine, by the rates of records of the same devices if there are any."""
    task, machine = run.task, plan.machine
    found = task.estimate(machine, records, usable_cores() / (plan.jobs or 1))
    run_plan = task.plan
    if run_plan is None or found is None:
        why = f"{task.id}: {task.refused.reason if task.refused else 'has no plan'}"
        return Taken(None, Bill(None, 1, None, why), (why,))
    whole, per_token = bill_of(task, found, machine), known(lambda: run_plan.flops.training)
    # A branch trains its last part alone, and starts like any run.
    time_s = None if whole.time_s is None else run.share * (whole.time_s - found.around_s) + found.around_s
    flops, energy_j = (
        None if each is None else run.share * each
        for each in (per_token and per_token * run_plan.budget.tokens, whole.energy_j)
    )
    own = replace(whole, time_s=time_s, energy_j=energy_j)
    return Taken(flops, own, (f"time: {found.time_source}", f"energy: {found.energy_source}"))


def print_forecast(plan: LadderPlan, study: Study, console: Console) -> None:
    """Print what a study's runs take, what is left to do, and the differences that its ladder can tell."""
    records, planned = records_in(plan.suite), plan.runs({})
    sizes = {cell.size: cell.parameters for cell in plan.cells.values()}
    rows = {("rates", size): _searches(plan, study, size) for size in plan.section.search_sizes}
    trained = [run.state in ("complete", "speed only") for run in study.runs]
    for run, is_trained in zip(planned, trained, strict=True):
        rows.setdefault(("cells", run.cell.size), []).append((run, is_trained))
    taken = {row: [_taken(run, plan, records) for run, _ in runs] for row, runs in rows.items()}
    every = [each for of_row in taken.values() for each in of_row]
    done = [is_done for runs in rows.values() for _, is_done in runs]
    left = [each.bill for each, is_done in zip(every, done, strict=True) if not is_done]
    at_once = max(1, len(slots(plan.machine, plan.jobs)) // max(run.task.slots for run in planned))
    print_lines(console, [first_line(left, at_once, plan.machine.name, study.price_per_hour), _title(plan)])
    table = plain_table("runs", ("size", "N", "number", "FLOPs", "device-hours", "energy"))
    for (kind, size), of_row in taken.items():
        table.add_row(kind, size, count(sizes[size]), *_cells(of_row))
    table.add_row("all", "", "", *_cells(every))
    console.print(table)
    told = f"{sum(trained)} of {len(trained)} runs of the cells are trained"
    told += f"; a search tries {SEARCHED} to {MOST} rates" if plan.section.search_sizes else ""
    lines = [told + ("; the first line is of what is left" if any(done) else "")]
    sources = dict.fromkeys(source for each in every for source in each.sources)
    lines += [f"{ABSENT} {source}" if source.startswith("energy: no record") else source for source in sources]
    lines += _grown(plan)
    print_lines(
        console, [*lines, _disk(plan, planned, at_once), *_matched(study), *_precision(plan, study), *replaced(plan)]
    )
    if unreadable := unreadable_text(plan):
        print_lines(console, [unreadable])


def _title(plan: LadderPlan) -> str:
    section = plan.section
    ratios = ", ".join(f"{ratio:g}" for ratio in sorted(section.tokens_per_parameter))
    return (
        f"{', '.join(section.ordered)} at {section.target.size}, {count(plan.target.tokens)} tokens; "
        f"{ratios} tokens per parameter, seeds: {section.seeds}"
    )


def _grown(plan: LadderPlan) -> list[str]:
    """Return how much the vocabulary of the text makes the smallest model larger than its size says, if it does."""
    name = f"{plan.section.baseline}_{plan.section.sizes[0]}"
    (smallest,) = chosen_combinations(replace(plan.request, only=(name,)))
    grown = with_vocabulary(smallest.config, is_given(smallest.overrides))[1]
    return [] if grown is None else [f"{name}: {grown}"]


def _searches(plan: LadderPlan, study: Study, size: str) -> list[tuple[Planned, bool]]:
    """Return as many runs as the searches at a size have at least, and whether each is done.

    Their rates do not matter here.
    """
    start = plan.section.learning_rate.start if isinstance(plan.section.learning_rate, Search) else 1.0
    cell = plan.cells[size, min(plan.section.tokens_per_parameter)]
    return [
        (Planned(name, cell, 0, plan.search(name, size, start)), number < len(study.searches.get((name, size), ())))
        for name in plan.section.ordered
        for number in range(SEARCHED)
    ]


def _cells(taken: Sequence[Taken]) -> tuple[str, ...]:
    flops, hours, energy_j = (
        _sum(each.flops for each in taken),
        _sum(each.device_hours for each in taken),
        _sum(each.bill.energy_j for each in taken),
    )
    return (
        f"{len(taken)}",
        ABSENT if flops is None else f"{flops:.2e}",
        ABSENT if hours is None else f"{hours:,.3g}" if hours < 1000 else f"{hours:,.0f}",
        ABSENT if energy_j is None else scaled(energy_j, ENERGY_UNITS),
    )


def _disk(plan: LadderPlan, runs: Sequence[Planned], at_once: int) -> str:
    """Return how much the checkpoints take: of each run its weights, what branches begin with, and what runs keep."""
    sizes = [(run, known(run.task.plan.checkpoint_bytes)) for run in runs if run.task.plan is not None]
    there = [(run, each) for run, each in sizes if each is not None]
    if not there:
        return f"disk: {ABSENT}: a variant declares no formula for its parameters"
    keep = max(model.config.checkpoint.keep for model in plan.models.values())
    own = sum(weights + (whole if run.begin else 0) for run, (weights, whole) in there)
    most = own + at_once * (keep + 1) * max(whole for _, (_, whole) in there)
    return f"disk: checkpoints take up to {most / 1e9:,.3g} GB"


def _matched(study: Study) -> list[str]:
    return [
        f"{variant}_{size}: feed-forward width {each.width:,} instead of {each.before:,}: "
        f"{percent(each.left, '+.2f')} left"
        for (variant, size), each in study.matching.items()
        if each.width != each.before
    ]


def _precision(plan: LadderPlan, study: Study) -> list[str]:
    section, measured = plan.section, seed_noise(study.ladder)
    ladder = Ladder.planned(section.ordered, tuple(plan.cells.values()), section.seeds, section.trunks)
    target, noise, prior = (plan.target.parameters, plan.target.tokens), PLANNED_NOISE, None
    if measured is not None:
        # Unevenness is one of all variants, and the precision that of two.
        noise, prior = measured, replace(fitted_to(Prior(), study.ladder), unevenness=None)
    found = precision(ladder, target, prior, noise)
    # The published law is of larger models: below, its slope would be a guess.
    worth = f" ({percent(found.compute, '.1f')} of the compute, by Chinchilla's law)"
    apart = f"equal runs lie {noise:.2g} nats apart (standard deviation), " + (
        "as those of these seeds do"
        if measured is not None
        else "as published ones of 124M parameters do; tiny models lie farther"
    )
    lines = [
        f"precision: a difference at the target has a standard deviation of {found.deviation:.4f} nats; a gap of "
        f"{found.gap:.3f} nats{worth if target[0] >= PUBLISHED_FROM else ''} is named with 80 %, if {apart}"
    ]
    if found.gap > WIDE_GAP:
        lines.append(f"warning: smaller gaps than {found.gap:.3f} nats will mostly be left undecided")
    if section.seeds == 1:
        lines.append("warning: with one seed the noise rests on the prior alone")
    return lines


def within_budget(
    words: Mapping[str, object], device_hours: float, matrix: Path, request: Request, machine: Machine, jobs: int | None
) -> StudySection:
    """Return the section that these words and a budget give: the largest ladder that it pays for.

    Sizes, tokens per parameter and seeds that the words have stay.

    Raises:
        ConfigError: a word is wrong, no time is known, or the budget is too small.
    """
    sizes = tuple(load_matrix(matrix).sizes)
    probe = section_of({"sizes": sizes, **words, "tokens_per_parameter": GRIDS[-1][0], "seeds": 1}, matrix)
    trunks, probe = probe.trunks, probe.model_copy(update={"trunks": False})
    able = _able(probe, request)
    if len(able) < LEAST_SIZES:
        raise ConfigError(
            f"--budget: the matrix has {len(able)} sizes below {probe.target.size} that the variants can have, and a "
            f"ladder needs {LEAST_SIZES}"
        )
    plan = plan_ladder(probe.model_copy(update={"sizes": tuple(able)}), request, machine, jobs, True, ("reach",))
    rates, why = _hours(plan)
    ascending = sorted(able, key=able.__getitem__)
    ladders = itertools.combinations(ascending, len(ascending) if "sizes" in words else LEAST_SIZES)
    reach = [
        each
        for each in ladders
        if able[each[-1]] * REACH >= plan.target.parameters
        and ("sizes" in words or _apart([able[size] for size in each]))
    ]
    costs: dict[float, str] = {}
    for (ratios, seeds), ladder in itertools.product(_grids(words, matrix), reversed(reach)):
        units = TRUNK_SHARE * max(ratios) + (1 - TRUNK_SHARE) * sum(ratios) if trunks else sum(ratios)
        hours = sum(rates[size].of(units, len(ratios)) for size in ladder) * seeds
        hours += sum(rates[size].of(SEARCHED * min(ratios), SEARCHED) for size in ladder[:2])
        if math.isnan(hours):
            continue  # a size that does not fit, or all where the machine's rate is not known
        if hours <= device_hours:
            return section_of({**words, "sizes": ladder, "tokens_per_parameter": ratios, "seeds": seeds}, matrix)
        costs[hours] = f"{len(ladder)} sizes, {len(ratios)} budgets, {seeds} seeds"
    if not reach:
        raise ConfigError(f"--budget: no size below {probe.target.size} is within {REACH} times of it")
    if not costs:
        # Of what would help a run, a study refuses this.
        why = why.replace(" --smoke;", "")
        raise ConfigError(f"--budget: no time is known for a run on {machine.name}: {why}")
    least = min(costs)
    raise ConfigError(
        f"--budget: {device_hours:g} device-hours: the least ladder of these variants ({costs[least]}) takes "
        f"{hours_text(least)} (plan of {machine.name})"
        f"{'; --dry-run --device NAME plans it for another machine' if machine.shared else ''}"
    )


def _grids(words: Mapping[str, object], matrix: Path) -> list[tuple[tuple[float, ...], int]]:
    """Return the tokens per parameter and seeds to try, of which the words may have decided some."""
    sizes = tuple(load_matrix(matrix).sizes)
    found = []
    for ratios, seeds in GRIDS:
        section = section_of({"sizes": sizes, "tokens_per_parameter": ratios, "seeds": seeds, **words}, matrix)
        found.append((section.tokens_per_parameter, section.seeds))
    return list(dict.fromkeys(found))


def _able(section: StudySection, request: Request) -> dict[str, float]:
    """Return size → N of the sizes below the target that all variants can have: each N, depth and width once."""
    request = replace(request, overrides=study_overrides(section, request.overrides))
    sizes = dict.fromkeys((*section.sizes, section.target.size))
    models: Models = models_of(section.ordered, tuple(sizes), request)[0]
    refused = {size for (_, size), each in models.items() if each.refused}
    if section.target.size in refused:
        raise ConfigError([f"{each.name}: {each.refused}" for each in models.values() if each.refused])
    own = {size: models[section.baseline, size].config for size in sizes if size not in refused}
    shapes = {(each.model.layers, each.model.hidden_size): size for size, each in reversed(own.items())}
    found = {
        size: cell_of(each, 1.0).parameters
        for size, each in own.items()
        if shapes[each.model.layers, each.model.hidden_size] == size
    }
    first = {n: size for size, n in reversed(found.items())}
    return {size: n for size, n in found.items() if first[n] == size and n < found[section.target.size]}


def _apart(parameters: Sequence[float]) -> bool:
    return all(larger >= APART * smaller for smaller, larger in itertools.pairwise(parameters))


@dataclass(frozen=True)
class _Hours:
    """Device-hours of all variants at one size; NaN: not known."""

    per_ratio: float
    """Hours of the training with one token per parameter."""
    per_run: float
    """Hours that a run takes besides its training, like its start."""

    def of(self, ratios: float, runs: int) -> float:
        """Return the hours of so many runs of each variant, `ratios` tokens per parameter together."""
        return self.per_ratio * ratios + self.per_run * runs


def _hours(plan: LadderPlan) -> tuple[dict[str, _Hours], str]:
    """Return what each size takes, and why no time is known where none is."""
    found, why = {}, ""
    few, many = min(plan.section.tokens_per_parameter), max(plan.section.tokens_per_parameter)
    for size in plan.section.sizes:
        taken = {
            ratio: [_taken(run, plan, []) for run in plan.runs({}) if run.cell == plan.cells[size, ratio]]
            for ratio in (few, many)
        }
        hours = {ratio: _sum(each.device_hours for each in of) for ratio, of in taken.items()}
        less, more = (math.nan if each is None else each for each in hours.values())
        per_ratio = (more - less) / (many - few)
        found[size] = _Hours(per_ratio, less - few * per_ratio)
        why = why or next((each.sources[0] for each in taken[few] if each.device_hours is None), "")
    return found, why
