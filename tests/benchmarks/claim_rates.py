"""How often `compare` and reports claim a difference: of identical models, and of one that is 5 % faster; simulated.

    python tests/benchmarks/claim_rates.py [--sets 2000] [--against COMMIT] [--write]

Each law says how the figures of a run vary, by a spread of 1 % between runs: three repeats of a row, in turns as
`sweep --repeat` makes them. Counted are the sets in which a comparison of two rows, or a report on four, claims that
any figure differs. Where a model is faster, counted are the sets in which `compare` finds the speed, and in which a
report names the row as faster than each other. Losses of real runs that differ in their seed alone are drawn from
`shared/data/public_runs` where it is there. `--against` counts by the rules of an earlier commit too. Exit status 1: a
share is beyond its bound by more than chance.
"""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import checked_out, options, write_content
from support.repository import ROOT
from support.simulated_rows import in_turns, simulated_rows

from efficientbench.devices.cpu import CPU
from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.noise import IdenticalRuns
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.analysis.rivals import QUESTIONS, Rivals

REPEATS, SPREAD, FASTER, SPEED, LOSS = 3, 0.01, 0.05, "tokens_per_s", "validation_loss"
SURE = 2.3
"""Standard deviations of chance beyond a bound."""
LOSSES = ROOT.parent / "shared" / "data" / "public_runs" / "equal_runs_124M.csv"

Draw = Callable[[Sequence[int], np.random.Generator], dict[str, np.ndarray]]


def independent(*spreads: float) -> Draw:
    """Return the law of runs that know nothing of each other; the last rows have these spreads in units of SPREAD."""

    def draw(order: Sequence[int], chance: np.random.Generator) -> dict[str, np.ndarray]:
        rows = max(order) + 1
        of_row = np.array([1.0] * (rows - len(spreads)) + list(spreads)) * SPREAD
        return {name: chance.normal(0, of_row[list(order)]) for name in QUESTIONS}

    return draw


def following(correlation: float) -> Draw:
    """Return the law of runs that follow the run before, AR(1), as where a machine's speed wanders."""

    def draw(order: Sequence[int], chance: np.random.Generator) -> dict[str, np.ndarray]:
        logs = {name: chance.normal(0, SPREAD, len(order)) for name in QUESTIONS}
        for each in logs.values():
            for place in range(1, len(each)):
                each[place] = correlation * each[place - 1] + math.sqrt(1 - correlation**2) * each[place]
        return logs

    return draw


def one_faster(order: Sequence[int], chance: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw figures that differ in nothing but that the first row is faster."""
    logs = independent()(order, chance)
    logs[SPEED] += np.where(np.array(order) == 0, math.log(1 + FASTER), 0.0)
    return logs


def real_losses(order: Sequence[int], chance: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw losses of real runs that differ in their seed alone."""
    groups: dict[str, list[float]] = {}
    with LOSSES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            groups.setdefault(row["group"], []).append(math.log(float(row["final_validation_loss"])))
    several = [losses for losses in groups.values() if len(losses) >= len(order)]
    return {LOSS: chance.choice(several[chance.integers(len(several))], len(order), replace=False)}


@dataclass(frozen=True)
class Law:
    """How figures vary, and between which shares of sets with a claim `compare` and reports must lie, in %."""

    title: str
    draw: Draw
    bounds: tuple[tuple[float, float], tuple[float, float]]
    found: bool = False
    """Whether what is counted is not any claim, but that the faster row is found."""


LAWS = (
    Law("equal spreads", independent(), ((2.5, 6.0), (2.5, 6.0))),
    Law("a row of 4 times the spread", independent(4.0), ((0.0, 6.5), (0.0, 6.5))),
    Law("two rows of 4 times the spread", independent(4.0, 4.0), ((0.0, 6.5), (0.0, 6.5))),
    Law("each run follows the one before, AR(1) of 0.5", following(0.5), ((0.0, 6.0), (0.0, 6.0))),
    Law("each run follows the one before, AR(1) of 0.9", following(0.9), ((0.0, 6.0), (0.0, 6.0))),
    Law("losses of real runs, 124M", real_losses, ((0.0, 5.5), (0.0, 5.5))),
    Law("one row 5 % faster, found", one_faster, ((86.0, 100.0), (60.0, 100.0)), found=True),
)


def compare_claims(rows: Sequence[Group], found: bool) -> bool:
    """Return whether a comparison claims any figure, or with `found`, the speed of the first row."""
    claimed = [ratio for ratio in compare(rows[0], rows[1]).ratios if ratio.measurable]
    return any(ratio.metric == SPEED and ratio.ratio < 1 for ratio in claimed) if found else bool(claimed)


def report_claims(rows: Sequence[Group], found: bool) -> bool:
    """Return whether a report claims any figure, or with `found`, that the first row is faster than each other."""
    rivals = Rivals(rows, IdenticalRuns(rows))
    if not found:
        return any(rivals.standing(metric).worse for metric in QUESTIONS)
    standing = rivals.standing(SPEED)
    return standing.best == 0 and len(standing.worse) == len(rows) - 1


KINDS: tuple[tuple[str, int, Callable[[Sequence[Group], bool], bool]], ...] = (
    ("compare, 3 against 3", 2, compare_claims),
    ("report, 4 rows × 3", 4, report_claims),
)


def shares(sets: int) -> dict[str, list[float]]:
    """Return for each law that can be drawn here the share of sets with a claim, in %, of each kind."""
    found: dict[str, list[float]] = {}
    for law in LAWS:
        if law.draw is real_losses and not LOSSES.exists():
            continue
        for _, rows, claims in KINDS:
            chance, count = np.random.default_rng(7), 0
            for _ in range(sets):
                order = in_turns(rows, REPEATS, chance)
                count += claims(simulated_rows(order, law.draw(order, chance), timed=True), law.found)
            found.setdefault(law.title, []).append(100 * count / sets)
        print(law.title, *(f"{each:.1f} %" for each in found[law.title]), file=sys.stderr, flush=True)
    return found


def earlier(commit: str, sets: int) -> dict[str, list[float]]:
    """Return the shares by the rules of another commit."""
    with tempfile.TemporaryDirectory() as folder:
        tree = checked_out(commit, Path(folder))
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        words = [sys.executable, __file__, "--sets", str(sets), "--json"]
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--against", metavar="COMMIT", help="count by the rules of this commit too")
    parser.add_argument("--json", action="store_true", help="print the shares alone")
    arguments = parser.parse_args()
    found = shares(arguments.sets)
    if arguments.json:
        print(json.dumps(found))
        return
    before = earlier(arguments.against, arguments.sets) if arguments.against else {}
    table, failed = [], False
    for law in LAWS:
        row = {"law": law.title}
        for place, (kind, _, _) in enumerate(KINDS):
            if law.title not in found:
                continue
            low, high = law.bounds[place]
            share = found[law.title][place]
            chance = [SURE * math.sqrt(bound * (100 - bound) / arguments.sets) for bound in (low, high)]
            failed |= not low - chance[0] <= share <= high + chance[1]
            if before:
                row[f"{kind}, before"] = f"{before[law.title][place]:.1f}%"
            row[kind] = f"{share:.1f}%"
        table.append(row)
        print(row, flush=True)
    if arguments.write:
        conditions = f"{arguments.sets} simulated sets each, {REPEATS} repeats of a row in turns, spread {SPREAD:.0%}"
        write_content(__file__, CPU(), {"conditions": conditions, "rows": table})
    sys.exit(failed)


if __name__ == "__main__":
    main()
