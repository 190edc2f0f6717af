"""Times of our own training steps in this working tree and at an earlier commit, by processes of both in turns.

    python3 tests/benchmarks/step_times.py [--against COMMIT] [--runs gqa_0.5B,nsa_0.5B] [--rounds 5] [--write]

Exits with 1 where a step has become slower beyond the noise: the 95 % interval of a ratio lies above 1 + `--allowed`.
`--write` keeps a row for each run, machine and commit in docs/measured/step_times.json.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import MEASURED, checked_out, git, options, write_content
from support.repository import ROOT

from efficientbench.devices.cpu import CPU
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, Ratio, Side, make_ratio

PROGRAM = """
import statistics, sys
from efficientbench.config.load import resolve
from support.measured import seconds
from support.single_rank import world_of_one_rank
from support.training_steps import our_step, random_tokens
config = resolve(sys.argv[1], smoke=True, overrides=["training.dtype=fp32"])
with world_of_one_rank(seed=config.training.seed) as device:
    step, _ = our_step(config, device, random_tokens(config, device))
    times_s = [seconds(step) for _ in range(5 + int(sys.argv[2]))]
print(statistics.median(times_s[5:]))
"""
"""Of one process: the median time of its steps after a warm-up of five, s. An old tree runs it with its own parts."""
MOST_ROWS = 60
"""Of the file: the newest ones."""
Row = dict[str, str]


def main() -> int:
    """Print the ratios, and return the exit code."""
    parser = options(__doc__)
    parser.add_argument("--against", default="HEAD~1", help="the earlier commit")
    parser.add_argument("--runs", default="gqa_0.5B,mla_0.5B,nsa_0.5B", help="smoke runs of the matrix")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each side")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of a process")
    parser.add_argument("--allowed", type=float, default=0.0, help="slowdown that is no failure, as 0.02")
    arguments = parser.parse_args()
    if arguments.rounds < MIN_REPEATS:
        parser.error(f"--rounds {arguments.rounds}: the noise between processes takes {MIN_REPEATS} or more")
    names, slower, rows = arguments.runs.split(","), False, []
    with tempfile.TemporaryDirectory() as folder:
        trees = (checked_out(arguments.against, Path(folder)), ROOT)
        for name in names:
            times_s = in_turns(trees, name, arguments.rounds, arguments.steps)
            ratio = make_ratio("step time", *map(Side.of, times_s))
            slower |= is_slower(ratio, arguments.allowed)
            print(f"{name}: {described(ratio)}", flush=True)
            commits = (git("rev-parse", "--short", arguments.against), git("describe", "--always", "--dirty"))
            rows += [row(name, commit, each) for commit, each in zip(commits, times_s, strict=True)]
    if arguments.write:
        conditions = (
            f"smoke runs, fp32, {arguments.rounds} processes of {arguments.steps} steps each, two trees in turns"
        )
        path = MEASURED / f"{Path(__file__).stem}.json"
        kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
        write_content(__file__, CPU(), {"conditions": conditions, "rows": joined(kept, rows)})
    return int(slower)


def in_turns(trees: Sequence[Path], name: str, rounds: int, steps: int) -> list[list[float]]:
    """Return the time of a step in each process, s, by tree; each round runs all trees in random order."""
    times_s: dict[Path, list[float]] = {tree: [] for tree in trees}
    for _ in range(rounds):
        for tree in random.sample(trees, len(trees)):
            environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}"}
            words = [sys.executable, "-c", PROGRAM, name, str(steps)]
            done = subprocess.run(words, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            times_s[tree].append(float(done.stdout.split()[-1]))
    return list(times_s.values())


def is_slower(ratio: Ratio, allowed: float) -> bool:
    """Return whether the second side's steps are shown to take longer, by more than the allowed share."""
    return ratio.low is not None and ratio.low > 1 + allowed


def described(ratio: Ratio) -> str:
    """Return both times and their ratio in one line."""
    assert ratio.low is not None
    assert ratio.high is not None
    times = f"{ratio.first * 1e3:.1f} ms before, {ratio.second * 1e3:.1f} ms now"
    return f"{times}, ratio {ratio.ratio:.3f} (95 % {ratio.low:.3f} to {ratio.high:.3f})"


def row(name: str, commit: str, times_s: Sequence[float]) -> Row:
    """Return what the file keeps of one run at one commit."""
    side = Side.of(times_s)
    margin = side.noise.margin if side.noise is not None else 0.0
    mean_ms, low_ms, high_ms = (math.exp(side.mean + shift) * 1e3 for shift in (0.0, -margin, margin))
    return {
        "run": name,
        "commit": commit,
        "machine": f"{len(os.sched_getaffinity(0))} cores of {CPU().names()[0]}",
        "date": datetime.date.today().isoformat(),
        "step, ms": f"{mean_ms:.1f}",
        "95 %": f"{low_ms:.1f} to {high_ms:.1f}",
    }


def joined(kept: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the newest rows, of which a new one replaces that of the same run, commit and machine."""
    named = {(each["run"], each["machine"], each["commit"]): each for each in (*kept, *rows)}
    return list(named.values())[-MOST_ROWS:]


if __name__ == "__main__":
    sys.exit(main())
