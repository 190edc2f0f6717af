"""Count where EfficientLLM's published ranks contradict each other: latency against throughput, one source the other.

    python tests/benchmarks/published_ranks.py [--write]

Its pages have ranks without values. Each group of rows is taken as it stands. Of every two methods, the ranks in
latency (AL) and in throughput (TT, ST or IT, the first that has ranks apart) put the same one first, or the other one,
or one of them none. Where our own ladder (`mini_study.py`) has both methods of a pair, each of its measured repetitions
says the same, the opposite, or neither. The ranks lie in `shared/data/public_runs/efficientllm_ranks.csv`. Exit status
1: that file is not there.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import MEASURED, options, write_content
from support.repository import ROOT

from efficientbench.devices.cpu import CPU

RANKS = ROOT.parent / "shared" / "data" / "public_runs" / "efficientllm_ranks.csv"
SITE, SHEET = "index.html", "excel_data.json"
LATENCY = "Latency: AL"
THROUGHPUTS = ("Throughput: TT", "Throughput: ST", "Throughput: IT")
WITHOUT_ATTENTION = "Attention-free Mechanism"
"""The group beside which our suite `attention_free` stands."""
HERE = {"Transformer": "`gqa`", "Mamba": "`mamba2`, its successor"}
"""Its methods → our variants; Pythia and RWKV have none."""
MECHANISMS = "Attention Mechanism"
"""The group of which our ladder has GQA and MLA."""

Group = tuple[str, str]
"""Table and group of rows."""
Ranks = dict[str, dict[str, int]]
"""Metric → method → rank; 1 is the best."""


def read(path: Path) -> dict[str, dict[Group, Ranks]]:
    """Return source → group → its ranks."""
    found: dict[str, dict[Group, Ranks]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            source, _, table = row["table"].partition(": ")
            group = found.setdefault(source, {}).setdefault((table, row["group"]), {})
            # One cell of the sheet reads "=7".
            group.setdefault(row["metric"], {})[row["method"]] = int(row["rank"].lstrip("="))
    return found


def throughput_of(ranks: Ranks) -> str:
    """Return the first metric of throughput in which not all methods have one rank."""
    return next(name for name in THROUGHPUTS if len(set(ranks.get(name, {}).values())) > 1)


def pairs(one: Mapping[str, int], other: Mapping[str, int]) -> tuple[int, int, int]:
    """Return how many pairs of methods two metrics put in the same order, in opposite orders, and level in one."""
    counts = [0, 0, 0]
    for first, second in itertools.combinations(one, 2):
        product = (one[first] - one[second]) * (other[first] - other[second])
        counts[0 if product > 0 else 1 if product < 0 else 2] += 1
    return counts[0], counts[1], counts[2]


def row(group: Group, ranks: Ranks) -> dict[str, str]:
    """Return what a group's ranks in latency and in throughput say of each other."""
    name = throughput_of(ranks)
    latency, throughput = ranks[LATENCY], ranks[name]
    same, opposite, level = pairs(latency, throughput)
    last = max(throughput.values())
    both = [method for method in latency if latency[method] == 1 and throughput[method] == last]
    return {
        "group": ", ".join(group),
        "rows": str(len(latency)),
        "throughput": name.rpartition(" ")[2],
        "pairs in the same order": str(same),
        "in opposite orders": str(opposite),
        "level in one": str(level),
        "first in latency and last in throughput": ", ".join(both) or "none",
    }


def beside(ranks: Ranks) -> list[dict[str, str]]:
    """Return each method of a group with our variant and its ranks, by metrics that order the methods."""
    ordering = {name.rpartition(" ")[2]: of for name, of in ranks.items() if len(set(of.values())) > 1}
    methods = next(iter(ranks.values()))
    return [
        {"there": method, "here": HERE.get(method, "–")} | {name: str(of[method]) for name, of in ordering.items()}
        for method in methods
    ]


def beside_ladder(ranks: Ranks, repetitions: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the order of GQA and MLA by their ranks, and by each repetition of our ladder at its target.

    Beside what the ladder says stands the quality that was trained there afterwards, by paired seeds.
    """
    rows = []
    for number, told in enumerate(repetitions, start=1):
        [of_mla] = [each for each in told["rows"] if each["variant"] == "mla"]
        seeds = of_mla["judged_by_seed"]
        loss, time = ([of_mla[f"{name}low"], of_mla[f"{name}high"]] for name in ("", "time_"))
        ours = {
            "Performance": (f"{of_mla['predicted']:+.3f} nats ({loss[0]:+.3f} to {loss[1]:+.3f})", loss, 0.0),
            LATENCY: (f"{of_mla['time'] - 1:+.0%} of time ({time[0] - 1:+.0%} to {time[1] - 1:+.0%})", time, 1.0),
        }
        for metric, (figure, interval, level) in ours.items():
            of = ranks[metric]
            trained = f"{of_mla['judged']:+.3f}: {_order(of, seeds, 0.0)}" if metric == "Performance" else "–"
            rows.append(
                {
                    "metric": metric.rpartition(" ")[2],
                    "rank of GQA": str(of["GQA"]),
                    "rank of MLA": str(of["MLA"]),
                    "repetition": str(number),
                    "MLA against GQA, by the ladder": figure,
                    "order": _order(of, interval, level),
                    "trained there": trained,
                }
            )
    return rows


def _order(ranks: Mapping[str, int], figures: Sequence[float], level: float) -> str:
    """Return whether figures of MLA, lower is better, lie on the side of the level that the ranks say, all of them."""
    above = {figure > level for figure in figures}
    if len(above) > 1:
        return "cannot be told"
    return "the same" if above == {ranks["MLA"] > ranks["GQA"]} else "opposite"


def sources_apart(found: Mapping[str, Mapping[Group, Ranks]]) -> tuple[int, int]:
    """Return how many ranks stand in both sources, and how many of these are not the same."""
    both = [
        (rank, found[SHEET][group][metric][method])
        for group, ranks in found[SITE].items()
        for metric, of_methods in ranks.items()
        for method, rank in of_methods.items()
        if method in found[SHEET].get(group, {}).get(metric, {})
    ]
    return len(both), sum(one != other for one, other in both)


def without_order(ranks: Mapping[Group, Ranks]) -> list[str]:
    """Return each table's columns in which every row of every group has one rank."""
    of_table: dict[tuple[str, str], set[int]] = {}
    for (table, _), metrics in ranks.items():
        for metric, of_methods in metrics.items():
            of_table.setdefault((table, metric), set()).update(of_methods.values())
    return [f"{metric} of {table}" for (table, metric), values in of_table.items() if len(values) == 1]


def main() -> None:
    arguments = options(__doc__).parse_args()
    if not RANKS.exists():
        sys.exit(f"{RANKS}: there is no such file")
    found = read(RANKS)
    table = [row(group, ranks) for group, ranks in found[SITE].items()]
    [without] = [beside(ranks) for (_, group), ranks in found[SITE].items() if group == WITHOUT_ATTENTION]
    [mechanisms] = [ranks for (_, group), ranks in found[SITE].items() if group == MECHANISMS]
    measured = sorted(MEASURED.glob("mini_study_*.json"))
    ladder = beside_ladder(mechanisms, [json.loads(path.read_text(encoding="utf-8")) for path in measured])
    count, apart = sources_apart(found)
    flat = "; ".join(without_order(found[SITE]))
    conditions = (
        f"{count} ranks stand in both {SITE} and {SHEET}, {apart} of them differ. One rank in every row: {flat}"
    )
    print(*table, *without, *ladder, conditions, sep="\n")
    if arguments.write:
        content = {"conditions": conditions, "rows": table, "without_attention": without, "ladder": ladder}
        write_content(__file__, CPU(), content)


if __name__ == "__main__":
    main()
