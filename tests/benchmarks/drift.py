"""How often identical models are told apart where the machine drifts, in reports and in `compare`, simulated.

    python tests/benchmarks/drift.py [--sets 200] [--write]

Runs of identical models have figures with a spread of 0.3 %; speed and energy change by 5 % over the whole set besides,
along a line or in one jump. The runs are made one after the other, in turns as `sweep --repeat` makes them, or in any
order. Counted are the sets in which a report or a comparison says that two rows differ in speed or energy. The rules of
before looked at no order: they are simulated by runs that all begin at once. Exit status 1: in an order, more sets have
a claim than chance allows at 6 %.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import options, write_content
from support.simulated_rows import Order, in_any_order, in_turns, one_after_the_other, simulated_rows

from efficientbench.devices.cpu import CPU
from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.noise import IdenticalRuns
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.analysis.rivals import QUESTIONS, Rivals

SPREAD, DRIFT = 0.003, 0.05
DRIFTING = {"tokens_per_s": -1, "energy_j_per_token": 1}
"""Figure that drifts → its direction."""
MOST, SURE = 0.06, 2.3
"""The share of sets that may have a claim, and the standard deviations of chance above it."""


def along_a_line(count: int, chance: np.random.Generator) -> np.ndarray:
    """Return each run's share of the drift, which grows evenly."""
    return np.linspace(0, 1, count)


def in_a_jump(count: int, chance: np.random.Generator) -> np.ndarray:
    """Return each run's share of the drift, which comes at once between two runs."""
    return np.where(np.arange(count) < chance.integers(1, count), 0.0, 1.0)


ORDERS: dict[str, Order] = {"after": one_after_the_other, "turns": in_turns, "any": in_any_order}
DRIFTS = {"line": along_a_line, "jump": in_a_jump}


def simulated(order: Sequence[int], drift: np.ndarray, chance: np.random.Generator, timed: bool) -> list[Group]:
    """Return the rows; with `timed`, each run begins an hour after the one before, else all at once."""
    noise = chance.normal(0, SPREAD, (len(order), len(QUESTIONS))).T
    logs = {name: each + DRIFTING.get(name, 0) * DRIFT * drift for name, each in zip(QUESTIONS, noise, strict=True)}
    return simulated_rows(order, logs, timed)


def report_claims(rows: Sequence[Group]) -> bool:
    """Return whether a report sets a row apart in a figure that drifts."""
    rivals = Rivals(rows, IdenticalRuns(rows))
    return any(rivals.standing(metric).worse for metric in DRIFTING)


def compare_claims(rows: Sequence[Group]) -> bool:
    """Return whether `compare` sets the first two rows apart in a figure that drifts; further rows are one model."""
    further = [
        Group(tuple(run.model_copy(update={"config": {**rows[2].first.config, "label": None}}) for run in row.records))
        for row in rows[2:]
    ]
    ratios = compare(rows[0], rows[1], neighbours=further).ratios
    return any(ratio.measurable and ratio.metric in DRIFTING for ratio in ratios)


KINDS: dict[str, tuple[str, int, int, Callable[[Sequence[Group]], bool]]] = {
    "report_4x3": ("report, 4 rows × 3", 4, 3, report_claims),
    "report_2x5": ("report, 2 rows × 5", 2, 5, report_claims),
    "compare_3": ("compare, 3 against 3", 2, 3, compare_claims),
    "compare_5": ("compare, 5 against 5", 2, 5, compare_claims),
    "compare_1": ("compare, single runs beside 4 of one model", 6, 1, compare_claims),
}


def share(kind: str, order: str, drift: str, timed: bool, sets: int) -> float:
    """Return the share of sets of identical models with a claim; `timed` is that of `simulated`."""
    _, rows, repeats, claims = KINDS[kind]
    chance, found = np.random.default_rng(7), 0
    for _ in range(sets):
        drawn = ORDERS[order](rows, repeats, chance)
        found += claims(simulated(drawn, DRIFTS[drift](len(drawn), chance), chance, timed))
    return found / sets


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sets", type=int, default=200)
    arguments = parser.parse_args()
    most = MOST + SURE * math.sqrt(MOST * (1 - MOST) / arguments.sets)
    table, failed = [], False
    for kind, (title, _, repeats, _) in KINDS.items():
        row = {"claims": title}
        for order, drift in itertools.product(ORDERS, DRIFTS):
            told = f"{ORDERS[order].__name__.replace('_', ' ')}, {drift}"
            # Single runs have no turns.
            asked = repeats > 1 or order == "any"
            if (order, drift) == ("after", "line"):
                before = f"{share(kind, order, drift, False, arguments.sets):.1%}" if asked else "–"
                row[f"{told}, by earlier rules"] = before
            found = share(kind, order, drift, True, arguments.sets) if asked else 0.0
            row[told] = f"{found:.1%}" if asked else "–"
            failed |= found > most
        table.append(row)
        print(row, flush=True)
    conditions = (
        f"{arguments.sets} simulated sets each of identical models, with a spread of {SPREAD:.1%} between runs and a "
        f"drift of speed and energy of {DRIFT:.0%} over a set"
    )
    if arguments.write:
        write_content(__file__, CPU(), {"conditions": conditions, "rows": table})
    sys.exit(failed)


if __name__ == "__main__":
    main()
