"""Rows of runs whose figures follow a known law, in the order in which a sweep or a user would have run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from support.metrics_parts import make_record

from efficientbench.metrics.analysis.repeats import Group, group_repeats
from efficientbench.metrics.records.record import RunRecord

Order = Callable[[int, int, np.random.Generator], list[int]]


def one_after_the_other(rows: int, repeats: int, chance: np.random.Generator) -> list[int]:
    """Return the row of each run in turn: all repeats of a row, then of the next."""
    return [row for row in range(rows) for _ in range(repeats)]


def in_turns(rows: int, repeats: int, chance: np.random.Generator) -> list[int]:
    """Return the rows as a sweep takes them: each round in random order, every second round as the last, backwards."""
    order: list[int] = []
    for number in range(repeats):
        order += order[: -rows - 1 : -1] if number % 2 else chance.permutation(rows).tolist()
    return order


def in_any_order(rows: int, repeats: int, chance: np.random.Generator) -> list[int]:
    """Return the rows in random order."""
    return chance.permutation(one_after_the_other(rows, repeats, chance)).tolist()


def simulated_rows(order: Sequence[int], logs: Mapping[str, np.ndarray], timed: bool) -> list[Group]:
    """Return the rows by name.

    Args:
        order: the row of each run, by time.
        logs: figure → the logarithm of each run's, in the same order; the figures' unit is 100.
        timed: whether each run begins an hour after the one before; else all begin within a second.
    """
    records: list[RunRecord] = []
    for place, row in enumerate(order):
        seed = order[:place].count(row)
        figures = {name: 100 * float(np.exp(each[place])) for name, each in logs.items()}
        # Runs that begin at the same moment would be copies of one.
        day = f"{1 + place // 24:02}T{place % 24:02}:00:00" if timed else f"01T00:00:00.{place:03}"
        begun = f"2026-01-{day}+00:00"
        names = {"variant": f"v{row}", "run": f"v{row}_1.5B", "seed": seed, "started_at": begun}
        config = {"training": {"seed": seed}, "model": {"attention": {"kind": f"v{row}"}}}
        # Step times that are equal to the last bit would be those of one run.
        times = {"step_time_percentiles_s": [place + each / 100 for each in range(101)]}
        records.append(
            make_record({**names, **figures, **times, "config": config, "tokens": 1000, "energy_scope": "gpu"})
        )
    return sorted(group_repeats(records), key=lambda group: group.name)
