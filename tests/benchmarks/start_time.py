"""Processor time that the start of a run takes in this working tree and at an earlier commit, by runs of both in turns.

    taskset -c 0 python tests/benchmarks/start_time.py --against COMMIT [--rounds 7] [--write]

A run is a tiny model's on one CPU rank, with `--smoke`. Its start is all that its processes compute, from the command
to the record, but for its steps, of which the first counts as long as the others' median.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.command_line import TINY
from support.measured import Figure, checked_out, options, report
from support.repository import ROOT

WORDS = [word for word in TINY if not word.startswith("faults.")]
"""A run on one node makes no preflight, whose key earlier commits lack."""


def main() -> None:
    """Print the processor times and their ratio; with `--write`, write them for the docs."""
    parser = options(__doc__)
    parser.add_argument("--against", required=True, help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each tree")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        earlier, runs = Path(folder) / "earlier", Path(folder) / "runs"
        earlier.mkdir()
        trees = (checked_out(arguments.against, earlier), ROOT)
        # The first run of a tree compiles its modules and tokenizes its text.
        starts_s: list[list[float]] = [[], []]
        for number in range(1 + arguments.rounds):
            for side in random.sample(range(2), 2):
                found_s = start_s(trees[side], runs / f"{side}" / f"{number}")
                if number:
                    starts_s[side].append(found_s)
                    print(f"round {number}, {('earlier', 'now')[side]}: {found_s:.2f} s", flush=True)
    figures = {
        "earlier": Figure.with_range(f"start of a run at commit {arguments.against}", starts_s[0], "s"),
        "now": Figure.with_range("start of a run now", starts_s[1], "s"),
        "ratio": Figure.with_range("ratio of both", [now / then for then, now in zip(*starts_s, strict=True)]),
    }
    report(__file__, arguments, figures, "processor time of all processes of a run without its steps, one CPU rank")


def start_s(tree: Path, folder: Path) -> float:
    """Return the processor time of one run of a tree without its steps, s; `folder` is for its files."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "efficientbench.cli", "run", "gqa_0.5B", "--smoke", *WORDS]
    words += [f"output={folder}", f"data.cache={folder.parent / 'data'}"]
    # With its descendants: each process waits for those that it has started.
    run = subprocess.Popen(words, cwd=tree, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise SystemExit(f"the run in {tree} ended with {run.returncode}")
    (steps,) = folder.rglob("steps.jsonl")
    lines = [json.loads(line) for line in steps.read_text(encoding="utf-8").splitlines()]
    times_s = [line["step_time_s"] for line in lines if line["kind"] == "step"]
    return used.ru_utime + used.ru_stime - len(times_s) * statistics.median(times_s)


if __name__ == "__main__":
    main()
