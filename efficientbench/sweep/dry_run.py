"""Print a sweep before it starts: for each run its state and its estimated time, memory and energy."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from rich.console import Console
from rich.text import Text

from efficientbench.basics.counted import number_of, seconds
from efficientbench.basics.grouped import grouped
from efficientbench.basics.language import in_users_language
from efficientbench.metrics.records.figure import ENERGY_UNITS, scaled
from efficientbench.planning.bill import Bill, first_line
from efficientbench.planning.table import ABSENT, plain_table, print_lines
from efficientbench.sweep.estimate import Estimate
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.task import Task, some_of

_LINE = 200
"""Characters of a line, more than any row has."""


def print_dry_run(
    tasks: Sequence[Task],
    states: Sequence[str],
    estimates: Sequence[Estimate | None],
    at_once: int,
    told: Sequence[str],
    machine: Machine,
    price_per_hour: float | None = None,
) -> None:
    """Print the whole budget, the runs with their estimates, how these were made, and the refused runs.

    Args:
        tasks: every run.
        states: the tasks' states, in the same order.
        estimates: the tasks' estimates on this machine; None for a refused task.
        at_once: most runs at the same time.
        told: sentences on what the repeats will tell.
        machine: the machine that runs them.
        price_per_hour: of one device, for the line of the whole budget; None: no money.
    """
    # A row stays on one line, however narrow the terminal is.
    console = Console(width=_LINE, highlight=False, soft_wrap=True)
    columns = ("state", "ranks", "steps", "tokens", "micro-batch", "GB", "time", "energy")
    table = plain_table("run", columns, title="the sweep, planned")
    for task, state, estimate in zip(tasks, states, estimates, strict=True):
        table.add_row(Text(task.id), in_users_language(state), *_cells(task, estimate))
    todo = [
        bill_of(task, each, machine)
        for task, each, state in zip(tasks, estimates, states, strict=True)
        if state == "queued" and each is not None
    ]
    print_lines(console, [first_line(todo, at_once, machine.name, price_per_hour)])
    console.print(table)
    print_lines(console, [_sum(len(todo), at_once), *_sources(estimates), *told, *_texts(tasks), *_refusals(tasks)])


def _texts(tasks: Sequence[Task]) -> list[str]:
    """Return what runs will read, each text once with the first runs that read it."""
    reads = grouped((text, task.id) for task in tasks if (text := task.text()) is not None)
    return [f"{some_of(ids)}: {text}" for text, ids in reads.items()]


def _refusals(tasks: Sequence[Task]) -> list[str]:
    """Return each refusal once with the first runs that have it."""
    refused = grouped((task.refused, task.id) for task in tasks if task.refused is not None)
    return [f"{some_of(ids)}: refused ({why.kind}): {why.reason}" for why, ids in refused.items()]


def _cells(task: Task, estimate: Estimate | None) -> tuple[str, ...]:
    planned = task.planned()
    if planned is None:
        return (ABSENT,) * 7
    used, memory_bytes = planned.micro_batch_size, planned.node_memory_bytes
    time_s, energy_j = (estimate.time_s, estimate.energy_j) if estimate else (None, None)
    return (
        f"{planned.ranks:,}",
        ABSENT if planned.steps is None else f"{planned.steps:,}",
        ABSENT if planned.tokens is None else f"{planned.tokens:,}",
        f"{used} for {task.asked}" if task.asked else str(used),
        ABSENT if memory_bytes is None else f"{memory_bytes / 1e9:.2f}",
        ABSENT if time_s is None else in_users_language(seconds(time_s)),
        ABSENT if energy_j is None else scaled(energy_j, ENERGY_UNITS),
    )


def bill_of(task: Task, estimate: Estimate, machine: Machine) -> Bill:
    """Return what a run takes by its estimate on a machine."""
    devices = 1 if machine.shared else task.ranks
    source = estimate.time_source if estimate.time_s is None else estimate.energy_source
    return Bill(estimate.time_s, devices, estimate.energy_j, source, bounded=estimate.bounded)


def _sum(todo: int, at_once: int) -> str:
    return f"{number_of(todo, 'run')} to do" + (f", up to {at_once} at once" if at_once > 1 else "")


def _sources(estimates: Sequence[Estimate | None]) -> list[str]:
    """Return each source of an estimate, and each reason for an n/a, once: times first, n/a last of each."""
    made = [each for each in estimates if each is not None]
    times = [(each.time_s is None, "time", each.time_source) for each in made]
    energies = [(each.energy_j is None, "energy", each.energy_source) for each in made]
    # Sorting is stable: the order of the runs remains among the sources and among the reasons.
    found = [*sorted(times, key=itemgetter(0)), *sorted(energies, key=itemgetter(0))]
    lines = [f"{f'{ABSENT} ' if absent else ''}{name}: {source}" for absent, name, source in found]
    return ["GB: peak of the ranks of the node together.", *dict.fromkeys(lines)]
