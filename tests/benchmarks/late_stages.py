"""What a late stage of a speedrun can cost: a mistake in any stage is refused at once, and a kill loses a bounded time.

    python tests/benchmarks/late_stages.py --folder FOLDER [--bound SECONDS] [--write]

It plants a mistake in each stage, one after the other, and times how long the speedrun takes to refuse it. Then it
starts the speedrun with `checkpoint.interval_s` set to the bound, and with checkpoints by steps further apart than any
stage is long. In each stage it kills all processes after more than twice the bound, as when the power fails, and starts
the same command again. What a kill lost is the time from the newest complete checkpoint to the kill.

It fails where a mistake is not refused before anything is made; where a kill loses more than the bound, a step and a
checkpoint; where the record of a stage has not counted what was lost; or where the speedrun does not end well.
"""

from __future__ import annotations

import datetime
import random
import sys
import time
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.campaigns import LIMIT_S, kill
from support.command_line import ROOT, record, steps, until
from support.measured import commit, options, write_row
from support.speedruns import prepared, run_folder, start

from efficientbench.training.checkpoints.manifest import complete, read_manifest

MISTAKES = {
    "base": "training.seq_len=500000000",
    "mid": "mid:model.layers=0",
    "sft": "sft:training.micro_batch_size=4",
    "rl": "rl:training.steps=3",
}
"""Stage → a key with which it cannot run."""
KEYS = (
    # By steps no checkpoint falls due. The stages' batches differ, and each has to be able to use the micro-batch.
    *("training.steps=1200", "checkpoint.interval=1000000", "training.micro_batch_size=auto"),
    *("sft:training.global_batch_size=6", "rl:training.steps=200", "rl:rl.samples=2", "rl:rl.max_new_tokens=8"),
)


def refused_after_s(words: tuple[str, ...], stage: str, work: Path) -> float:
    """Return how long a speedrun takes to refuse a stage's mistake, s; exit where it does not, or has made anything."""
    begun_s = time.monotonic()
    speedrun = start((*words, MISTAKES[stage]))
    shown = speedrun.communicate(timeout=LIMIT_S)[0]
    time_s = time.monotonic() - begun_s
    print(f"{stage}, {MISTAKES[stage]}: refused after {time_s:.0f} s: {shown.strip().splitlines()[-1]}", flush=True)
    made = [path for path in (work / "tokenizer", work / "runs" / f"{stage}_d4") if path.exists()]
    if speedrun.returncode != 2 or made or "error:" not in shown:
        sys.exit(f"{stage}: {MISTAKES[stage]} ended with {speedrun.returncode} and made {made}:\n{shown[-3000:]}")
    return time_s


def elapsed_s(folder: Path) -> list[float]:
    """Return the elapsed time at each line of a run's log that has one, s."""
    return [line["elapsed_s"] for line in steps(folder) if "elapsed_s" in line]


def killed(words: tuple[str, ...], folder: Path, bound_s: float, chance: random.Random) -> dict[str, float]:
    """Kill a speedrun in a stage; return how long it had trained, what is lost, and the longest time between lines."""
    speedrun = start(words)
    try:
        until(lambda: speedrun.poll() is not None or len(elapsed_s(folder)) > 1, "two steps", LIMIT_S)
        first_s = elapsed_s(folder)[0]
        wanted_s = bound_s * chance.uniform(2, 3)
        until(
            lambda: speedrun.poll() is not None or elapsed_s(folder)[-1] - first_s > wanted_s, "time to kill", LIMIT_S
        )
    finally:
        cut_short = speedrun.poll() is None and kill(speedrun, True, chance)
        at_s = time.time()
    shown = speedrun.communicate()[0]
    if not cut_short or (folder / "record.json").exists():
        sys.exit(f"{folder}: had ended before the kill:\n{shown[-3000:]}")
    lines_s, log_s = elapsed_s(folder), (folder / "steps.jsonl").stat().st_mtime
    saved = complete(folder)
    saved_s = read_manifest(saved[-1]).progress["elapsed_s"] if saved else 0.0
    found = {
        "trained": lines_s[-1] - first_s,
        "lost": lines_s[-1] + max(0.0, at_s - log_s) - saved_s,
        "known": max(0.0, lines_s[-1] - saved_s),
        "longest": max(after - before for before, after in pairwise(lines_s)),
    }
    print(f"{folder.parent.name}: {found}, {len(saved)} checkpoints", flush=True)
    if not saved or found["lost"] > bound_s + 2 * found["longest"]:
        sys.exit(f"{folder}: a kill lost {found['lost']:.1f} s, and the bound is {bound_s} s")
    return found


def stage_row(stage: str, refused_s: float, kill_s: dict[str, float], content: dict[str, Any]) -> dict[str, str]:
    """Return a stage's row by its titles; exit where its record has not counted what was lost."""
    if content["status"] != "completed" or content["restarts_s"] < kill_s["known"]:
        sys.exit(f"{stage}: {content['status']}, {content['restarts_s']} s of restarts, and {kill_s['known']} s lost")
    return {
        "stage": stage,
        "mistake": f"`{MISTAKES[stage]}`",
        "refused after, s": f"{refused_s:.0f}",
        "bound, s": f"{content['checkpoint_bound_s']:g}",
        "trained before the kill, s": f"{kill_s['trained']:.1f}",
        "lost, s": f"{kill_s['lost']:.1f}",
        "longest step with its checkpoint, s": f"{kill_s['longest']:.1f}",
        "restarts in the record, s": f"{content['restarts_s']:.1f}",
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }


def main(arguments: Namespace) -> None:
    """Print each stage's row; with `--write`, write it for the docs."""
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True)
    data = ROOT.parent / "shared" / "data"
    laid = tuple(word for word in prepared(folder, data) if not word.startswith("training.micro_batch_size="))
    rows = data / "gsm8k"
    asked = (f"rl:rl.questions={rows / 'train.jsonl'}", f"rl:rl.test_questions={rows / 'test.jsonl'}")
    words = (*laid, "--rl", *KEYS, *asked, f"checkpoint.interval_s={arguments.bound:g}")
    refused_s = {stage: refused_after_s(words, stage, folder / "work") for stage in MISTAKES}
    chance = random.Random(38)
    kills_s = {stage: killed(words, run_folder(folder, stage), arguments.bound, chance) for stage in MISTAKES}
    speedrun = start(words)
    shown = speedrun.communicate(timeout=LIMIT_S)[0]
    if speedrun.returncode:
        sys.exit(f"the speedrun ended with {speedrun.returncode}:\n{shown[-3000:]}")
    for stage in MISTAKES:
        row = stage_row(stage, refused_s[stage], kills_s[stage], record(run_folder(folder, stage)))
        print(row, flush=True)
        if arguments.write:
            write_row(
                __file__,
                row,
                lambda each: list(MISTAKES).index(each["stage"]),
                "every process killed by SIGKILL at once",
            )


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="takes what the speedrun writes; it must not exist")
    parser.add_argument("--bound", type=float, default=4.0, help="seconds between checkpoints")
    main(parser.parse_args())
