"""What a study takes, and what it can tell, before it is trained; and the ladder that a budget can pay for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from efficientbench.architecture.variant import known
from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.errors import ConfigError
from efficientbench.config.matrix import load_matrix
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.records.record import RunRecord
from efficientbench.planning.table import ABSENT, plain_table, print_lines
from efficientbench.study.cells import LadderPlan, Models, cell_of, models_of, plan_ladder, study_overrides
from efficientbench.study.further import TRUNK_SHARE
from efficientbench.study.ladder import LEAST_SIZES, Ladder
from efficientbench.study.run_record import StudyTask
from efficientbench.study.runs import Study
from efficientbench.study.simulate import precision
from efficientbench.study.suite import REACH, Search, StudySection, section_of
from efficientbench.study.trunks import Planned
from efficientbench.sweep.dry_run import energy_text
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request

SEARCHED = 3
"""Rates that a search tries at least."""
GRIDS = (((10.0, 20.0, 40.0), 3), ((10.0, 20.0, 40.0), 2), ((10.0, 20.0), 2))
"""Tokens per parameter and seeds that a budget may pay for, the best first."""
APART = 1.5
"""How many times larger than the next smaller one a size of such a ladder is."""
WIDE_GAP = 0.02
"""Nats from which on a gap that a ladder can see is warned of."""


@dataclass(frozen=True)
class Sum:
    """What some runs take together; None where that is not known of each."""

    runs: int
    flops: float | None
    device_hours: float | None
    energy_j: float | None
    sources: tuple[str, ...]
    """How time and energy were estimated, or why they were not."""

    def __add__(self, other: Sum) -> Sum:
        """Return both together."""
        return Sum(
            self.runs + other.runs,
            _both(self.flops, other.flops),
            _both(self.device_hours, other.device_hours),
            _both(self.energy_j, other.energy_j),
            tuple(dict.fromkeys((*self.sources, *other.sources))),
        )


NOTHING = Sum(0, 0.0, 0.0, 0.0, ())


def _both(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _taken(runs: Iterable[Planned], machine: Machine, records: Sequence[RunRecord]) -> Sum:
    """Return what some runs take on a machine, by the rates of records of the same devices if there are any."""
    return sum((_of(run.task, run.share, machine, records) for run in runs), NOTHING)


def _of(task: StudyTask, share: float, machine: Machine, records: Sequence[RunRecord]) -> Sum:
    """Return what the share of a run takes that it trains itself."""
    plan, found = task.plan, task.estimate(machine, records, usable_cores())
    if plan is None or found is None:
        return Sum(1, None, None, None, (f"{task.id}: {task.refused.reason if task.refused else 'has no plan'}",))
    per_token = known(lambda: plan.flops.training)
    devices = 1 if machine.shared else plan.layout.world_size
    return Sum(
        1,
        None if per_token is None else share * per_token * plan.budget.tokens,
        None if found.time_s is None else share * found.time_s * devices / 3600,
        None if found.energy_j is None else share * found.energy_j,
        (f"time: {found.time_source}", f"energy: {found.energy_source}"),
    )


def print_forecast(plan: LadderPlan, study: Study, records: Sequence[RunRecord], console: Console) -> None:
    """Print what a study's runs take, what is left to do, and the differences that its ladder can tell."""
    section = plan.section
    ratios = ", ".join(f"{ratio:g}" for ratio in sorted(section.tokens_per_parameter))
    title = (
        f"{', '.join(section.ordered)} at {section.target.size}, {count(plan.target.tokens)} tokens; "
        f"{ratios} tokens per parameter, seeds: {section.seeds}"
    )
    table = plain_table("runs", ("size", "N", "number", "FLOPs", "device-hours", "energy"))
    print_lines(console, [title])
    total = NOTHING
    planned = plan.runs({})
    sizes = {cell.size: cell.parameters for cell in plan.cells.values()}
    for kind, size in (*(("rates", size) for size in section.search_sizes), *(("cells", size) for size in sizes)):
        runs = _searches(plan, size) if kind == "rates" else [run for run in planned if run.cell.size == size]
        found = _taken(runs, plan.machine, records)
        total += found
        table.add_row(kind, size, count(sizes[size]), *_cells(found))
    table.add_row("all", "", "", *_cells(total))
    console.print(table)
    done = sum(run.state in ("complete", "speed only") for run in study.runs)
    lines = [f"{done} of {len(study.runs)} runs of the cells are trained; a search tries {SEARCHED} to 6 rates"]
    lines += [f"{ABSENT} {source}" if source.startswith("energy: no record") else source for source in total.sources]
    print_lines(console, [*lines, _disk(plan, planned), *_matched(study), *_precision(plan)])


def _searches(plan: LadderPlan, size: str) -> list[Planned]:
    """Return as many runs as the searches at a size have at least; their rates do not matter here."""
    start = plan.section.learning_rate.start if isinstance(plan.section.learning_rate, Search) else 1.0
    cell = plan.cells[size, min(plan.section.tokens_per_parameter)]
    return [Planned(name, cell, 0, plan.search(name, size, start)) for name in plan.section.ordered] * SEARCHED


def _cells(found: Sum) -> tuple[str, ...]:
    hours = found.device_hours
    return (
        f"{found.runs}",
        ABSENT if found.flops is None else f"{found.flops:.2e}",
        ABSENT if hours is None else f"{hours:,.3g}" if hours < 1000 else f"{hours:,.0f}",
        ABSENT if found.energy_j is None else energy_text(found.energy_j),
    )


def _disk(plan: LadderPlan, runs: Sequence[Planned]) -> str:
    """Return how much the checkpoints take: of each run its weights, what branches begin with, and what runs keep."""
    sizes = [(run, known(run.task.plan.checkpoint_bytes)) for run in runs if run.task.plan is not None]
    there = [(run, each) for run, each in sizes if each is not None]
    if not there:
        return f"disk: {ABSENT}: a variant declares no formula for its parameters"
    keep = max(model.config.checkpoint.keep for model in plan.models.values())
    at_once = plan.jobs or len(plan.machine.devices)
    own = sum(weights + (whole if run.begin else 0) for run, (weights, whole) in there)
    most = own + at_once * (keep + 1) * max(whole for _, (_, whole) in there)
    return f"disk: checkpoints take up to {most / 1e9:,.3g} GB"


def _matched(study: Study) -> list[str]:
    return [
        f"{variant}_{size}: feed-forward width {each.width:,} instead of {each.before:,}: {each.left:+.2%} left"
        for (variant, size), each in study.matching.items()
        if each.width != each.before
    ]


def plan_of(plan: LadderPlan) -> Ladder:
    """Return the ladder of a plan, whose losses are 0."""
    section = plan.section
    cells = tuple(plan.cells.values())
    return Ladder(section.ordered, cells, np.zeros((len(section.ordered), len(cells), section.seeds)), section.trunks)


def _precision(plan: LadderPlan) -> list[str]:
    target = plan.target.parameters, plan.target.tokens
    found = precision(plan_of(plan), target)
    lines = [
        f"precision: a difference at the target has a standard deviation of {found.deviation:.4f} nats; a gap of "
        f"{found.gap:.3f} nats ({found.compute:.1%} of the compute) is named with 80 %"
    ]
    if found.gap > WIDE_GAP:
        lines.append(f"warning: smaller gaps than {found.gap:.3f} nats will mostly be left undecided")
    if plan.section.seeds == 1:
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
    per_ratio, why = _hours(plan)
    ascending = sorted(able, key=able.__getitem__)
    ladders = itertools.combinations(ascending, len(ascending) if "sizes" in words else LEAST_SIZES)
    reach = [
        each
        for each in ladders
        if able[each[-1]] * REACH >= plan.target.parameters and _apart([able[size] for size in each])
    ]
    costs: dict[float, str] = {}
    for (ratios, seeds), ladder in itertools.product(_grids(words, matrix), reversed(reach)):
        units = TRUNK_SHARE * max(ratios) + (1 - TRUNK_SHARE) * sum(ratios) if trunks else sum(ratios)
        hours = sum(per_ratio[size] for size in ladder) * units * seeds
        hours += SEARCHED * min(ratios) * sum(per_ratio[size] for size in ladder[:2])
        if math.isnan(hours):
            raise ConfigError(f"--budget: no time is known for a run on {machine.name}: {why}")
        if hours <= device_hours:
            return section_of({**words, "sizes": ladder, "tokens_per_parameter": ratios, "seeds": seeds}, matrix)
        costs[hours] = f"{len(ladder)} sizes, {len(ratios)} budgets, {seeds} seeds"
    if not costs:
        raise ConfigError(f"--budget: no size below {probe.target.size} is within {REACH} times of it")
    least = min(costs)
    raise ConfigError(
        f"--budget: {device_hours:g} device-hours: the least ladder of these variants ({costs[least]}) takes "
        f"{least:,.3g} (plan of {machine.name})"
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


def _hours(plan: LadderPlan) -> tuple[dict[str, float], str]:
    """Return size → device-hours of all variants for one token per parameter and seed (NaN: not known), and why."""
    found, why = {}, ""
    ratio = min(plan.section.tokens_per_parameter)
    for size in plan.section.sizes:
        cell = plan.cells[size, ratio]
        whole = _taken((run for run in plan.runs({}) if run.cell == cell), plan.machine, [])
        found[size] = math.nan if whole.device_hours is None else whole.device_hours / ratio
        why = why or (whole.sources[0] if whole.device_hours is None else "")
    return found, why
