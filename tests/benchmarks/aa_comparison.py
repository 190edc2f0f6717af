"""What `compare` claims between runs that differ in their seed alone, and whether it finds one slowed by 5 %.

    python tests/benchmarks/aa_comparison.py FOLDER [--runs 12] [--splits 200] [--sets 500]
        [--slowed] [--steady] [--write]

Real runs of a tiny model are made in FOLDER with the command line; complete ones there are kept. Random splits of them,
3 against 3, are compared, and the claims of a difference in step time and in validation loss counted. The splits share
runs, so that 5 % of them is no bound: it is the 95th percentile of the claims in simulated sets of as many exchangeable
runs, which go through the same procedure. Exit status 1: there are more.

`--slowed` makes as many runs whose steps have a pause of 5 % inside, in turn with the others, and counts in how many
splits of 3 against 3 slowed ones that is found. That takes a machine whose speed varies little between runs; how little
is simulated. `--steady` does the same with runs whose steps a pause fills up to one length, as on such a machine.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from support.command_line import TINY, efficientbench
from support.measured import Figure, options, report
from support.repository import ROOT

from efficientbench.metrics.analysis.compare import METRICS, SAME
from efficientbench.metrics.analysis.judging import ORDER, TURNS, Judge
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, Ratio, corrected
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import RunRecord

LENGTH = ("training.steps=120", "training.validation_tokens=8192", "measurement.warmup_steps=20")
MODEL = (
    *LENGTH,
    *("model.layers=4", "model.hidden_size=128", "model.heads=4", "model.head_dim=32", "model.ffn_hidden_size=256"),
    *("training.seq_len=128", "training.global_batch_size=8", "training.micro_batch_size=4"),
    "training.learning_rate=3e-3",
)
SPEED, LOSS = "al_s", "validation_loss"
MOST_CLAIMS = 0.95
"""Percentile of the simulated claims that the real ones may reach."""
SLOWDOWN = 1.05
STEADY_STEP_S = 0.1
KINDS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "plain": (MODEL, {}),
    "slowed": (MODEL, {"SLOWER": f"{SLOWDOWN - 1:.2f}"}),
    "steady": (LENGTH, {"STEP_S": str(STEADY_STEP_S)}),
    "steady_slowed": (LENGTH, {"STEP_S": str(SLOWDOWN * STEADY_STEP_S)}),
}
"""Kind of runs → its configuration, and the environment by which `paced` puts pauses into its steps."""
PACED = ROOT / "tests" / "replicas" / "paced"
WANTED_POWER = 0.8
Split = tuple[tuple[int, ...], tuple[int, ...]]


def make_runs(folder: Path, count: int, kinds: Sequence[str]) -> None:
    """Make the runs of each kind that the folder lacks, the kinds in turns of random order."""
    chance = random.Random(0)
    for seed in range(1, count + 1):
        for kind in chance.sample(kinds, len(kinds)):
            words = ("run", "gqa_1.5B", "--smoke", f"output={folder / kind}", f"data.cache={folder / 'cache'}")
            configuration, pauses = KINDS[kind]
            words += (*TINY, *configuration, "--repeat", "1", f"training.seed={seed}")
            path = os.pathsep.join(map(str, (ROOT, PACED) if pauses else (ROOT,)))
            efficientbench(*words, expect=0, PYTHONPATH=path, **pauses)
            print(f"{kind} run {seed} of {count}", flush=True)


def page(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> dict[str, Ratio]:
    """Return what a comparison shows of all figures that the runs have, corrected for their number.

    They are asked for in the order of different models, which is what most comparisons are of.
    """
    figures = [name for name in METRICS if all(getattr(record, name) for record in (*first, *second))]
    judge = Judge(Group(tuple(first)), Group(tuple(second)), despite=(TURNS,))  # splits are random
    return {ratio.metric: ratio for ratio in corrected([judge.ratio(name) for name in figures], SAME, ORDER)}


def claims(records: Sequence[RunRecord], splits: Sequence[Split]) -> dict[str, int]:
    """Return in how many splits a comparison claims a difference in speed, and in loss."""
    pages = [page(*([records[place] for place in side] for side in split)) for split in splits]
    return {name: sum(bool(each[name].measurable) for each in pages) for name in (SPEED, LOSS)}


def random_splits(count: int, splits: int) -> list[Split]:
    """Return different splits of as many runs, MIN_REPEATS against as many, in random order."""
    chance, found = random.Random(1), dict[Split, None]()
    while len(found) < splits:
        chosen = chance.sample(range(count), 2 * MIN_REPEATS)
        found[tuple(sorted(chosen[:MIN_REPEATS])), tuple(sorted(chosen[MIN_REPEATS:]))] = None
    return list(found)


def exchangeable(records: Sequence[RunRecord], chance: np.random.Generator) -> list[RunRecord]:
    """Return as many runs that differ by chance alone: each figure with the real runs' mean and spread, log-normal.

    Figures that are one have one chance. Losses by sequence, where the runs have them, vary with run and sequence.
    """
    count = len(records)
    updates: list[dict[str, object]] = [{} for _ in records]
    draws = {name: chance.normal(size=count) for name in METRICS}
    for name in METRICS:
        values = [getattr(record, name) for record in records]
        if all(values):
            logs = np.log(values)
            made = np.exp(logs.mean() + logs.std(ddof=1) * draws[SAME.get(name, name)])
            for update, value in zip(updates, made, strict=True):
                update[name] = float(value)
    losses = np.array([record.validation_sequence_losses for record in records])
    if losses.size:
        runs, text = losses.mean(axis=1), losses.mean(axis=0)
        rest = losses - runs[:, None] - text + losses.mean()
        noise = chance.normal(size=losses.shape) * rest.std() + (draws[LOSS] * runs.std(ddof=1))[:, None]
        for update, own in zip(updates, text + noise, strict=True):
            update |= {"validation_sequence_losses": own.tolist(), LOSS: float(own.mean())}
    return [record.model_copy(update=update) for record, update in zip(records, updates, strict=True)]


def found_slowed(records: Sequence[RunRecord], spread: float, trials: int, chance: np.random.Generator) -> float:
    """Return the share of simulated trials in which runs slowed by 5 % are found, MIN_REPEATS against as many.

    `spread`: the standard deviation between runs of the logarithm of the step time, which is normal.
    """
    forms = [name for name, of in SAME.items() if of == SPEED and getattr(records[0], name)]
    hits = 0
    for _ in range(trials):
        factors = np.exp(chance.normal(size=2 * MIN_REPEATS) * spread)
        factors[MIN_REPEATS:] *= SLOWDOWN
        runs = [
            run.model_copy(
                update={SPEED: records[0].al_s * factor, **{form: getattr(records[0], form) / factor for form in forms}}
            )
            for run, factor in zip(exchangeable(records, chance), factors.tolist(), strict=False)
        ]
        speed = page(runs[:MIN_REPEATS], runs[MIN_REPEATS:])[SPEED]
        hits += bool(speed.measurable) and speed.ratio > 1
    return hits / trials


def most_spread(records: Sequence[RunRecord], trials: int, chance: np.random.Generator) -> float:
    """Return the largest spread between runs, in %, at which runs slowed by 5 % are found in 80 % of trials."""
    for percent in np.arange(3.0, 0.0, -0.1):
        if found_slowed(records, float(percent) / 100, trials, chance) >= WANTED_POWER:
            return float(percent)
    return 0.0


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--sets", type=int, default=500, help="simulated sets of runs")
    parser.add_argument("--slowed", action="store_true", help="make slowed runs too, and count how often that is found")
    parser.add_argument("--steady", action="store_true", help="the same with runs of steady steps")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    make_runs(folder, arguments.runs, ["plain", "slowed"] if arguments.slowed else ["plain"])
    records = load_records(folder / "plain")[0]
    splits = random_splits(len(records), arguments.splits)
    found = claims(records, splits)
    chance = np.random.default_rng(2)
    simulated = [claims(exchangeable(records, chance), splits) for _ in range(arguments.sets)]
    singles = [page([one], [other]) for one, other in itertools.combinations(records, 2)]
    figures = {"single_runs": _count("claims between single runs", sum(map(_claims, singles)), len(singles), "pairs")}
    for name, title in ((SPEED, "step time"), (LOSS, "validation loss")):
        most = float(np.quantile([each[name] for each in simulated], MOST_CLAIMS))
        figures[name] = _count(f"claims of a difference in {title}", found[name], len(splits), "splits")
        figures[f"{name}_most"] = _count(f"{title}, 95th percentile of simulated sets", most, arguments.sets, "sets")
        figures[f"{name}_spread"] = _spread(f"{title}, standard deviation between runs", records, name)
    figures["spread_for_5_percent"] = _count(
        "spread of step times between runs at which 5 % slower is found in 80 % of simulated trials",
        *(most_spread(records, arguments.splits, chance), arguments.splits, "trials", "%"),
    )
    if arguments.slowed:
        figures["slowed"] = _found("runs slowed by 5 %, found", records, load_records(folder / "slowed")[0], splits)
    if arguments.steady:
        make_runs(folder, arguments.runs, ["steady", "steady_slowed"])
        steady = load_records(folder / "steady")[0]
        slowed = load_records(folder / "steady_slowed")[0]
        figures["steady_spread"] = _spread("steps of one length: step time, standard deviation between runs", steady)
        figures["steady_slowed"] = _found("steps of one length: runs slowed by 5 %, found", steady, slowed, splits)
    conditions = (
        f"{len(records)} runs of {records[0].parameters:,} parameters that differ in their seed alone, "
        f"{records[0].steps_measured} measured steps of {records[0].al_s or 0:.3f} s"
    )
    report(__file__, arguments, figures, conditions)
    too_many = [name for name in found if found[name] > figures[f"{name}_most"].value]
    sys.exit(bool(too_many or figures["single_runs"].value))


def _claims(shown: dict[str, Ratio]) -> bool:
    return any(ratio.measurable for ratio in shown.values())


def _spread(what: str, records: Sequence[RunRecord], name: str = SPEED) -> Figure:
    logs = np.log([getattr(record, name) for record in records])
    return _count(what, 100 * float(logs.std(ddof=1)), len(records), "runs", "%")


def _found(what: str, records: Sequence[RunRecord], slowed: Sequence[RunRecord], splits: Sequence[Split]) -> Figure:
    """Return in how many splits the slower runs are found to be slower."""
    pages = [page([records[place] for place in one], [slowed[place] for place in other]) for one, other in splits]
    hits = sum(bool(each[SPEED].measurable) and each[SPEED].ratio > 1 for each in pages)
    return _count(what, 100 * hits / len(pages), len(pages), "splits", "%")


def _count(what: str, value: float, n: int, n_of: str, unit: str = "") -> Figure:
    return Figure(what, value, unit, n=n, n_of=n_of)


if __name__ == "__main__":
    main()
